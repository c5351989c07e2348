//! Generates the code for the texts in `etcd/` and `quoin/`, with no other tool than cargo.

use std::{env, error::Error, fs, path::PathBuf};

const FILES: &[&str] = &[
    "etcd/api/authpb/auth.proto",
    "etcd/api/etcdserverpb/rpc.proto",
    "etcd/api/mvccpb/kv.proto",
    "etcd/server/v3election/v3electionpb/v3election.proto",
    "etcd/server/v3lock/v3lockpb/v3lock.proto",
    "quoin/kv/v1/kv.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=etcd");
    println!("cargo:rerun-if-changed=quoin");
    let mut descriptors = protox::compile(FILES, ["."])?;
    tonic_prost_build::configure()
        .bytes(".")
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors.clone())?;

    // Reflection serves names and numbers; places in the source would only make it larger.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let path = PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin");
    fs::write(path, prost::Message::encode_to_vec(&descriptors))?;
    Ok(())
}
