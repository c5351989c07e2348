//! quoin
fn main() {}
