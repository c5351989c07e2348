//! Feeds a replica with any frames of its peers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quoin_consensus::fuzz::frames(bytes);
});
