//! Parses any bytes as requests of Redis's protocol, at once and in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quoin_api::fuzz::requests(bytes);
});
