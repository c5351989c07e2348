//! Generates code from the `.proto` files in `etcd/` and `quoin/`, with no tool other than cargo.

mod costs;

use std::{env, error::Error, fs, path::PathBuf};

const FILES: &[&str] = &[
    "etcd/api/authpb/auth.proto",
    "etcd/api/etcdserverpb/rpc.proto",
    "etcd/api/mvccpb/kv.proto",
    "etcd/server/v3election/v3electionpb/v3election.proto",
    "etcd/server/v3lock/v3lockpb/v3lock.proto",
    "quoin/v1/consistency.proto",
    "quoin/auth/v1/auth.proto",
    "quoin/kv/v1/kv.proto",
    "quoin/route/v1/route.proto",
    "quoin/ledger/v1/ledger.proto",
    "quoin/table/v1/table.proto",
];
/// How messages are decoded: `src/bounded.rs`.
const CODEC: &str = "crate::Codec";
/// Responses that the server encodes once and sends many times, or writes straight from its records.
const ENCODED: &[&str] = &[".quoin.route.v1.GetResponse", ".quoin.route.v1.WatchResponse"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=etcd");
    println!("cargo:rerun-if-changed=quoin");
    println!("cargo:rerun-if-changed=costs.rs");
    println!("cargo:rerun-if-changed=build.rs");
    let mut descriptors = protox::compile(FILES, ["."])?;
    // The codec finds what a request takes by its name.
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    // Objects are stored as they are encoded: the same object is the same bytes.
    config.btree_map([".quoin.route.v1", ".quoin.ledger.v1.Extra"]);
    // Few transfers have it, and a batch has thousands of transfers.
    config.boxed(".quoin.ledger.v1.Transfer.extra");
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path(CODEC)
        .emit_rerun_if_changed(false)
        .compile_fds_with_config(descriptors.clone(), config)?;
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(folder.join("costs.rs"), costs::generate(&descriptors))?;

    compile_encoded(&descriptors)?;

    // Reflection serves names and numbers; source locations and comments would only make it larger.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let path = PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin");
    fs::write(path, prost::Message::encode_to_vec(&descriptors))?;
    Ok(())
}

/// Generates the route face's server a second time, with the responses in [`ENCODED`] as bytes. All other
/// types are those generated before.
fn compile_encoded(descriptors: &prost_types::FileDescriptorSet) -> Result<(), Box<dyn Error>> {
    let mut route = descriptors.clone();
    route.file.retain(|file| matches!(file.package(), "quoin.v1" | "quoin.kv.v1" | "quoin.route.v1"));
    let folder = PathBuf::from(env::var("OUT_DIR")?).join("encoded");
    fs::create_dir_all(&folder)?;
    let mut builder = tonic_prost_build::configure()
        .build_client(false)
        .codec_path(CODEC)
        .emit_rerun_if_changed(false)
        .out_dir(folder)
        .extern_path(".quoin.v1", "crate::quoin::v1")
        .extern_path(".quoin.kv.v1", "crate::quoin::kv::v1")
        .extern_path(".quoin.route.v1", "crate::quoin::route::v1");
    for message in ENCODED {
        builder = builder.extern_path(*message, "crate::Encoded");
    }
    builder.compile_fds(route)?;
    Ok(())
}
