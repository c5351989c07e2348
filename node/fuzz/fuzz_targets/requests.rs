//! Reads any bytes as requests of Redis's protocol, whole and in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quoin_node::api::fuzz::requests(bytes);
});
