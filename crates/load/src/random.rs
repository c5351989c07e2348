//! Pseudo-random numbers: a xorshift generator, because choosing keys must cost next to nothing.

/// A xorshift generator.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Different seeds give different sequences.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A value to write. Its bytes are random, so that a server that compresses gains nothing.
    pub(crate) fn value(bytes: usize) -> Vec<u8> {
        let mut random = Self::seeded(0x5eed);
        (0..bytes).map(|_| random.next() as u8).collect()
    }
}
