//! The codec of all services: a request is refused before it is decoded, if decoding would take too much
//! memory.
//!
//! **Invariant: Bounded.** What a request may take is in proportion to what was sent, see `charge.rs`; the
//! services bound what was sent. Answers are not checked: clients bound them by their length.

use crate::charge::{self, Costs, Part};
use bytes::{Buf, Bytes};
use prost::{Message, Name};
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

include!(concat!(env!("OUT_DIR"), "/costs.rs"));

/// Protocol Buffers, with a bound on the memory that a request takes.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

/// The half of [`Codec`] that reads.
#[derive(Debug)]
pub struct BoundedDecoder<U>(PhantomData<U>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

impl<U: Message + Name + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // Not a copy: the message shares the received buffer.
        Self::decode_message(buffer.copy_to_bytes(buffer.remaining())).map(Some)
    }
}

impl<U: Message + Name + Default> BoundedDecoder<U> {
    /// `None` for what is no request.
    const COSTS: Option<&'static Costs> = find(U::PACKAGE, U::NAME);

    fn decode_message(message: Bytes) -> Result<U, Status> {
        if let Some(costs) = Self::COSTS
            && !charge::fits(&message, costs)
        {
            return Err(Status::resource_exhausted(format!(
                "a request of {} bytes with too many elements for its size: send them in several requests",
                message.len()
            )));
        }
        U::decode(message).map_err(|error| Status::internal(error.to_string()))
    }
}

const fn find(package: &str, name: &str) -> Option<&'static Costs> {
    let mut place = 0;
    while place < REQUESTS.len() {
        let (of_package, of_name, costs) = REQUESTS[place];
        if equal(of_package.as_bytes(), package.as_bytes()) && equal(of_name.as_bytes(), name.as_bytes()) {
            return Some(costs);
        }
        place += 1;
    }
    None
}

const fn equal(one: &[u8], other: &[u8]) -> bool {
    let mut place = 0;
    while place < one.len() && place < other.len() && one[place] == other[place] {
        place += 1;
    }
    place == one.len() && place == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{Compare, RangeResponse, RequestOp, TxnRequest, WatchRequest};
    use crate::quoin::ledger::v1::CreateTransfersRequest;
    use crate::quoin::route::v1::{PutRequest, Rule};
    use crate::quoin::table::v1::{LookupRequest, WriteRequest};
    use prost::encoding::{WireType, encode_key, encode_varint};
    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
    use std::collections::{BTreeMap, BTreeSet};
    use tonic::Code;

    fn decode<U: Message + Name + Default>(message: Vec<u8>) -> Result<U, Code> {
        BoundedDecoder::<U>::decode_message(message.into()).map_err(|status| status.code())
    }

    /// 6 MB of empty repeated messages took 1 GB before they were refused.
    #[test]
    fn a_request_of_empty_elements_is_refused_before_it_is_decoded() {
        // Field 2, no bytes.
        let steps = |count| [2 << 3 | 2, 0].repeat(count);
        assert_eq!(decode::<TxnRequest>(steps(128)).unwrap().success.len(), 128);
        assert_eq!(decode::<TxnRequest>(steps(780_000)), Err(Code::ResourceExhausted));
        let first = |count| [1 << 3 | 2, 0].repeat(count);
        assert_eq!(decode::<PutRequest>(first(3_000_000)), Err(Code::ResourceExhausted));
        assert_eq!(decode::<CreateTransfersRequest>(steps(3_000_000)), Err(Code::ResourceExhausted));
        // An answer is not refused: clients bound its length.
        assert!(decode::<RangeResponse>([2 << 3 | 2, 0].repeat(300_000)).is_ok());
    }

    /// A field of the length-delimited kind.
    fn field(number: i32, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(content.len() + 16);
        encode_key(number as u32, WireType::LengthDelimited, &mut out);
        encode_varint(content.len() as u64, &mut out);
        out.extend_from_slice(content);
        out
    }

    type Messages = BTreeMap<String, DescriptorProto>;

    fn collect(parent: &str, message: &DescriptorProto, into: &mut Messages) {
        let name = format!("{parent}.{}", message.name());
        message.nested_type.iter().for_each(|nested| collect(&name, nested, into));
        into.insert(name, message.clone());
    }

    /// Is given a repeated field: the fields that lead to it, outermost first, its message, and itself.
    type Each<'a> = dyn FnMut(&[(&str, i32)], &str, &FieldDescriptorProto) + 'a;

    /// Calls `each` with every repeated field in a message.
    fn each_repeated<'a>(
        messages: &'a Messages,
        of: &'a str,
        path: &mut Vec<(&'a str, i32)>,
        each: &mut Each<'_>,
    ) {
        if path.iter().any(|(known, _)| *known == of) {
            return;
        }
        for field in &messages[of].field {
            if field.label() == Label::Repeated {
                each(path, of, field);
            }
            if field.r#type() == Type::Message {
                path.push((of, field.number()));
                each_repeated(messages, field.type_name(), path, each);
                path.pop();
            }
        }
    }

    /// In the requests of every service, however deep; each field of each message once.
    #[test]
    fn every_repeated_field_of_every_request_is_bounded() {
        let set = FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).expect("generated by the build");
        let mut messages = Messages::new();
        for file in &set.file {
            file.message_type
                .iter()
                .for_each(|message| collect(&format!(".{}", file.package()), message, &mut messages));
        }
        let methods = set.file.iter().flat_map(|file| &file.service).flat_map(|service| &service.method);
        let inputs: BTreeSet<&str> = methods.map(|method| method.input_type()).collect();
        // 9,000,000 elements, of which the smallest take 8 bytes.
        let elements = |number| field(number, &[]).repeat(9_000_000);
        let (mut seen, mut known) = (BTreeSet::new(), BTreeSet::new());
        for input in inputs {
            let (package, name) = input[1..].rsplit_once('.').expect("every file has a package");
            let costs = find(package, name).unwrap_or_else(|| panic!("{input} has no costs"));
            each_repeated(&messages, input, &mut Vec::new(), &mut |path, of, repeated| {
                let number = repeated.number();
                if !known.insert((of.to_owned(), number)) {
                    return;
                }
                let innermost = match repeated.r#type() {
                    Type::Message | Type::String | Type::Bytes => elements(number),
                    // They take what they have on the wire.
                    Type::Fixed32
                    | Type::Fixed64
                    | Type::Sfixed32
                    | Type::Sfixed64
                    | Type::Float
                    | Type::Double => return,
                    _ => field(number, &[1; 9_000_000]),
                };
                let message = path.iter().rev().fold(innermost, |inner, (_, number)| field(*number, &inner));
                assert!(!charge::fits(&message, costs), "{input}: {path:?} {}", repeated.name());
                seen.insert(format!("{package} {}", repeated.name()));
            });
        }
        for field in [
            "etcdserverpb compare",
            "etcdserverpb filters",
            "quoin.kv.v1 operations",
            "quoin.kv.v1 conditions",
            "quoin.route.v1 rules",
            "quoin.ledger.v1 transfers",
            "quoin.ledger.v1 accounts",
            "quoin.table.v1 tables",
        ] {
            assert!(seen.contains(field), "{field} is not among {seen:?}");
        }
    }

    #[test]
    fn the_largest_honest_requests_are_taken() {
        let put =
            |key: u32| crate::etcdserverpb::PutRequest { key: key.to_string().into(), ..Default::default() };
        let step =
            |key| RequestOp { request: Some(crate::etcdserverpb::request_op::Request::RequestPut(put(key))) };
        let txn = TxnRequest { success: (0..100_000).map(step).collect(), ..Default::default() };
        assert!(decode::<TxnRequest>(txn.encode_to_vec()).is_ok());
        let rules = (0..20_000).map(|vni| Rule { vni, ip: "10.0.0.1".into(), ..Default::default() });
        assert!(
            decode::<PutRequest>(PutRequest { rules: rules.collect(), ..Default::default() }.encode_to_vec())
                .is_ok()
        );
        let write = WriteRequest {
            keys: (0..500_000).collect(),
            values: vec![Bytes::from_static(b"1234"); 500_000],
            ..Default::default()
        };
        assert!(decode::<WriteRequest>(write.encode_to_vec()).is_ok());
        assert_eq!(WatchRequest::NAME, "WatchRequest");
        assert!(
            find("quoin.table.v1", LookupRequest::NAME).is_some()
                && find("quoin.table.v1", "Lookup").is_none()
        );
    }

    #[test]
    fn costs_are_no_smaller_than_the_types() {
        let charged = |costs: &Costs, field: u32| {
            let parts = costs.0.iter().filter(|(number, _)| *number == field);
            parts.map(|(_, part)| if let Part::Message(bytes, _) = part { *bytes } else { 0 }).sum::<usize>()
        };
        let txn = find("etcdserverpb", "TxnRequest").unwrap();
        assert!(charged(txn, 1) >= size_of::<Compare>() && charged(txn, 1) < 2 * size_of::<Compare>());
        assert!(charged(txn, 2) >= size_of::<RequestOp>() && charged(txn, 2) < 2 * size_of::<RequestOp>());
        let put = find("quoin.route.v1", "PutRequest").unwrap();
        assert!(charged(put, 1) >= size_of::<Rule>() && charged(put, 1) < 2 * size_of::<Rule>());
    }
}
