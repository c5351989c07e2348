//! Part of the build: what decoding each request takes in memory, as tables for `src/charge.rs`.
//!
//! Sizes are those of the Rust types on a 64-bit machine, or a little more; a test compares some.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const STRING_BYTES: usize = 24;
const BYTES_BYTES: usize = 32;
const LIST_BYTES: usize = 24;
const MAP_BYTES: usize = 48;
const NUMBER_BYTES: usize = 8;
/// What an `Option` or an enum adds to what it holds.
const TAG_BYTES: usize = 8;

/// Rust code: a `Costs` for every message that clients send, and `REQUESTS`, those of the methods' inputs by package and
/// name.
pub(super) fn generate(descriptors: &FileDescriptorSet) -> String {
    let mut messages = BTreeMap::new();
    for file in &descriptors.file {
        for message in &file.message_type {
            collect(&format!(".{}", file.package()), message, &mut messages);
        }
    }
    let services = descriptors.file.iter().flat_map(|file| &file.service);
    let mut inputs: Vec<&str> =
        services.flat_map(|service| &service.method).map(|method| method.input_type()).collect();
    inputs.sort_unstable();
    inputs.dedup();
    let mut asked = BTreeSet::new();
    inputs.iter().for_each(|input| reach(input, &messages, &mut asked));
    let mut out = String::new();
    // Only what clients send is charged.
    for (name, message) in messages.iter().filter(|(name, _)| asked.contains(name.as_str())) {
        let fields: String = message.field.iter().filter_map(|field| part(field, &messages)).collect();
        let name = identifier(name);
        writeln!(out, "static {name}: Costs = Costs(&[{fields}]);").expect("a string grows");
        writeln!(out, "const _: () = assert!({name}.is_sound());").expect("a string grows");
    }
    out.push_str("const REQUESTS: &[(&str, &str, &Costs)] = &[\n");
    for input in inputs {
        let (package, name) = input[1..].rsplit_once('.').expect("every file has a package");
        writeln!(out, "(\"{package}\", \"{name}\", &{}),", identifier(input)).expect("a string grows");
    }
    out.push_str("];\n");
    out
}

type Messages<'a> = BTreeMap<String, &'a DescriptorProto>;

fn collect<'a>(parent: &str, message: &'a DescriptorProto, into: &mut Messages<'a>) {
    let name = format!("{parent}.{}", message.name());
    for nested in &message.nested_type {
        collect(&name, nested, into);
    }
    into.insert(name, message);
}

/// Adds a message and all that it can hold.
fn reach<'a>(name: &'a str, messages: &Messages<'a>, into: &mut BTreeSet<&'a str>) {
    if into.insert(name) {
        let fields = messages[name].field.iter().filter(|field| field.r#type() == Type::Message);
        fields.for_each(|field| reach(field.type_name(), messages, into));
    }
}

/// `.quoin.kv.v1.PutRequest` as `QUOIN_KV_V1_PUTREQUEST`.
fn identifier(name: &str) -> String {
    name[1..].replace('.', "_").to_uppercase()
}

/// The entry of a field that can cost memory of its own.
fn part(field: &FieldDescriptorProto, messages: &Messages<'_>) -> Option<String> {
    let repeated = field.label() == Label::Repeated;
    let part = match field.r#type() {
        Type::Message => {
            // A singular message is part of the one that holds it.
            let bytes = if repeated { size(messages[field.type_name()], messages) } else { 0 };
            format!("Part::Message({bytes}, &{})", identifier(field.type_name()))
        }
        _ if !repeated => return None,
        Type::String => format!("Part::Bytes({STRING_BYTES})"),
        Type::Bytes => format!("Part::Bytes({BYTES_BYTES})"),
        Type::Fixed32 | Type::Fixed64 | Type::Sfixed32 | Type::Sfixed64 | Type::Float | Type::Double => {
            "Part::Fixed".into()
        }
        _ => format!("Part::Varints({NUMBER_BYTES})"),
    };
    Some(format!("({}, {part}), ", field.number()))
}

/// The bytes of a message in memory, without what its fields point to.
fn size(message: &DescriptorProto, messages: &Messages<'_>) -> usize {
    let is_map = |name: &str| messages[name].options.as_ref().is_some_and(|options| options.map_entry());
    let of_field = |field: &FieldDescriptorProto| match (field.label(), field.r#type()) {
        (Label::Repeated, Type::Message) if is_map(field.type_name()) => MAP_BYTES,
        (Label::Repeated, _) => LIST_BYTES,
        (_, Type::Message) => TAG_BYTES + size(messages[field.type_name()], messages),
        (_, Type::String) => STRING_BYTES,
        (_, Type::Bytes) => BYTES_BYTES,
        _ if field.proto3_optional() => NUMBER_BYTES + TAG_BYTES,
        _ => NUMBER_BYTES,
    };
    let mut choices: BTreeMap<i32, usize> = BTreeMap::new();
    let mut bytes = 0;
    for field in &message.field {
        match field.oneof_index.filter(|_| !field.proto3_optional()) {
            Some(choice) => {
                let largest = choices.entry(choice).or_default();
                *largest = of_field(field).max(*largest);
            }
            None => bytes += of_field(field),
        }
    }
    bytes + choices.values().map(|largest| TAG_BYTES + largest).sum::<usize>()
}
