//! Where a key is stored: its shard, part, bucket and slot, all derived from one 64-bit hash.
//!
//! These functions are part of the file format (docs/table-format.md): changing a constant makes a new format
//! version. [`mix`] is a bijection, so no two keys have the same hash.
//!
//! Deliberately absent: a secret. Whoever knows the format can choose keys that fall into one bucket under the public
//! seeds; the builder then draws others for that part, and a lookup costs the same for every key.

/// Mixes all bits of a key; a bijection on 64 bits.
///
/// Two rounds of xorshift and multiplication, with degski's constant.
#[inline]
pub(crate) fn mix(key: u64) -> u64 {
    const M: u64 = 0xd6e8_feb8_6659_fd93;
    let mut x = key;
    x = (x ^ (x >> 32)).wrapping_mul(M);
    x = (x ^ (x >> 32)).wrapping_mul(M);
    x ^ (x >> 32)
}

/// Maps `hash` to a number below `n`; also returns the remaining hash for the next choice.
#[inline]
pub(crate) fn choose(hash: u64, n: u64) -> (u64, u64) {
    let product = u128::from(hash) * u128::from(n);
    ((product >> 64) as u64, product as u64)
}

/// The shard of `key` in a table of `shards` files. Clients that split batches by shard use the same
/// function.
///
/// # Panics
/// If `shards` is 0.
pub fn shard_of(key: u64, shards: u32) -> u32 {
    assert!(shards > 0, "a table has at least one shard");
    choose(mix(key), u64::from(shards)).0 as u32
}

/// The shard of `hash`, and its part within that shard, which has `parts(shard)` parts.
#[inline]
pub(crate) fn shard_and_part(hash: u64, shards: u64, parts: impl FnOnce(usize) -> u64) -> (usize, usize) {
    let (shard, rest) = choose(hash, shards);
    let shard = shard as usize;
    (shard, choose(rest, parts(shard)).0 as usize)
}

/// The hash within a part, mixed with the part's seed.
#[inline]
pub(crate) fn within(hash: u64, seed: u64) -> u64 {
    let x = (hash ^ seed).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ (x >> 32)
}

/// The bucket of a hash within a part.
#[inline]
pub(crate) fn bucket(within: u64, buckets: u32) -> u32 {
    choose(within, u64::from(buckets)).0 as u32
}

/// The slot of a hash within a part, given its bucket's pilot.
#[inline]
pub(crate) fn slot(within: u64, pilot: u8, slots: u32) -> u32 {
    let displaced = within ^ (u64::from(pilot) + 1).wrapping_mul(0x517c_c1b7_2722_0a95);
    choose(displaced.wrapping_mul(0x9e37_79b9_7f4a_7c15), u64::from(slots)).0 as u32
}

/// The public seed of the attempt number `attempt`, counted from 0, to find a part's pilots.
pub(crate) fn seed(attempt: u64) -> u64 {
    mix(attempt.wrapping_add(0x5175_6f69_6e54_6162))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_are_pinned() {
        assert_eq!(mix(0), 0);
        assert_eq!(mix(1), 0x4179_b061_e0c0_e0d0);
        assert_eq!(seed(0), 0x3a44_8201_d77a_d081);
        assert_eq!(within(mix(1), seed(0)), 0x021e_c81a_7877_34c7);
        assert_eq!((bucket(u64::MAX, 7), slot(mix(1), 3, 1000), shard_of(1, 10)), (6, 585, 2));
    }
}
