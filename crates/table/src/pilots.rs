//! The index of one part: one byte (the *pilot*) per bucket, which gives each of the bucket's keys its own
//! slot.
//!
//! After PTHash (Pibiri, Trani 2021) and PtrHash (Groot Koerkamp 2025): keys are hashed into small buckets,
//! and the builder tries pilots until a bucket's keys collide with nothing. If all 256 collide, the bucket
//! evicts the cheapest set of other buckets, which then search for new pilots. A lookup reads one byte and
//! computes the slot.
//!
//! Deliberately absent: minimality. [`SLOTS_PER_KEY`] leaves a few slots free, which shortens the search and
//! spares lookups a table of remapped keys.

use crate::hash;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Keys per bucket, on average.
const KEYS_PER_BUCKET: f64 = 3.0;
/// Slots for each key.
const SLOTS_PER_KEY: f64 = 1.0 / 0.98;
/// The largest bucket for which pilots are tried; a larger one means another seed.
const BUCKET_KEYS_MAX: usize = 64;
/// Seeds that everybody knows. They come first, so that the same keys give the same file.
const PUBLIC_SEEDS: u64 = 4;
/// Seeds drawn at random once those have failed, before giving up on a part: nobody can choose keys that collide
/// under them.
const DRAWN_SEEDS: usize = 64;
/// The number of recently placed buckets that may not be evicted, so that the search does not cycle.
const RECENT: usize = 16;
const FREE: u32 = u32::MAX;

/// The index of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pilots {
    pub(crate) seed: u64,
    pub(crate) slots: u32,
    pub(crate) pilots: Vec<u8>,
}

impl Pilots {
    /// Builds an index of distinct `hashes` (see [`hash::mix`]). `None` if two are equal.
    pub(crate) fn build(hashes: &[u64]) -> Option<Self> {
        let slots = ((hashes.len() as f64 * SLOTS_PER_KEY).ceil() as u32).max(1);
        let buckets = ((hashes.len() as f64 / KEYS_PER_BUCKET).ceil() as u32).max(1);
        let drawn = (0..DRAWN_SEEDS).map(|_| RandomState::new().hash_one(hashes.len()));
        (0..PUBLIC_SEEDS).map(hash::seed).chain(drawn).find_map(|seed| {
            let pilots = Search::new(hashes, seed, slots, buckets)?.run()?;
            Some(Self { seed, slots, pilots })
        })
    }

    /// The slot of a hash; an arbitrary slot if the hash is not in the part.
    pub(crate) fn slot(&self, hash: u64) -> u32 {
        let within = hash::within(hash, self.seed);
        let bucket = hash::bucket(within, self.pilots.len() as u32);
        hash::slot(within, self.pilots[bucket as usize], self.slots)
    }
}

struct Search {
    slots: u32,
    /// The offset of each bucket's first key in `keys`, and the end of the last bucket.
    starts: Vec<u32>,
    /// The hashes within the part, grouped by bucket.
    keys: Vec<u64>,
    pilots: Vec<u8>,
    /// The bucket that owns each slot, or [`FREE`].
    owners: Vec<u32>,
    moves_left: usize,
    random: u64,
}

impl Search {
    fn new(hashes: &[u64], seed: u64, slots: u32, buckets: u32) -> Option<Self> {
        let within = |&hash: &u64| hash::within(hash, seed);
        let mut starts = vec![0u32; buckets as usize + 1];
        for key in hashes.iter().map(within) {
            starts[hash::bucket(key, buckets) as usize + 1] += 1;
        }
        if starts.iter().any(|&size| size as usize > BUCKET_KEYS_MAX) {
            return None;
        }
        for bucket in 0..buckets as usize {
            starts[bucket + 1] += starts[bucket];
        }
        let mut next = starts.clone();
        let mut keys = vec![0; hashes.len()];
        for key in hashes.iter().map(within) {
            let place = &mut next[hash::bucket(key, buckets) as usize];
            keys[*place as usize] = key;
            *place += 1;
        }
        Some(Self {
            slots,
            starts,
            keys,
            pilots: vec![0; buckets as usize],
            owners: vec![FREE; slots as usize],
            moves_left: 1000 + 20 * buckets as usize,
            random: seed,
        })
    }

    fn run(mut self) -> Option<Vec<u8>> {
        let mut order: Vec<u32> =
            (0..self.pilots.len() as u32).filter(|&bucket| self.size(bucket) > 0).collect();
        order.sort_by_key(|&bucket| std::cmp::Reverse(self.size(bucket)));
        let mut evicted = Vec::new();
        let mut recent = VecDeque::with_capacity(RECENT);
        for bucket in order {
            evicted.push(bucket);
            recent.clear();
            while let Some(bucket) = evicted.pop() {
                if self.place(bucket) {
                    continue;
                }
                let pilot = self.cheapest(bucket, &recent)?;
                self.take(bucket, pilot, &mut evicted);
                self.moves_left = self.moves_left.checked_sub(1)?;
                if recent.len() == RECENT {
                    recent.pop_front();
                }
                recent.push_back(bucket);
            }
        }
        Some(self.pilots)
    }

    fn size(&self, bucket: u32) -> usize {
        (self.starts[bucket as usize + 1] - self.starts[bucket as usize]) as usize
    }

    fn slots_of(&self, bucket: u32, pilot: u8) -> impl Iterator<Item = usize> + use<'_> {
        let range = self.starts[bucket as usize] as usize..self.starts[bucket as usize + 1] as usize;
        self.keys[range].iter().map(move |&key| hash::slot(key, pilot, self.slots) as usize)
    }

    /// Places `bucket` with the first pilot whose slots are all free; false if there is none.
    fn place(&mut self, bucket: u32) -> bool {
        let mut slots = [0usize; BUCKET_KEYS_MAX];
        'pilot: for pilot in 0..=u8::MAX {
            let mut count = 0;
            for slot in self.slots_of(bucket, pilot) {
                if self.owners[slot] != FREE {
                    continue 'pilot;
                }
                slots[count] = slot;
                count += 1;
            }
            if all_distinct(&slots[..count]) {
                for &slot in &slots[..count] {
                    self.owners[slot] = bucket;
                }
                self.pilots[bucket as usize] = pilot;
                return true;
            }
        }
        false
    }

    /// The pilot that evicts the fewest and smallest buckets. `None` if with every pilot the bucket's own
    /// keys collide or a recently placed bucket would be evicted.
    fn cheapest(&mut self, bucket: u32, recent: &VecDeque<u32>) -> Option<u8> {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let first = (self.random >> 56) as u8;
        let mut best = None;
        let mut slots = [0usize; BUCKET_KEYS_MAX];
        'pilot: for step in 0..=u8::MAX {
            let pilot = first.wrapping_add(step);
            let (mut count, mut cost) = (0, 0);
            for slot in self.slots_of(bucket, pilot) {
                let owner = self.owners[slot];
                if owner != FREE {
                    cost += self.size(owner).pow(2);
                    if recent.contains(&owner) {
                        continue 'pilot;
                    }
                }
                if best.is_some_and(|(least, _)| cost >= least) {
                    continue 'pilot;
                }
                slots[count] = slot;
                count += 1;
            }
            if all_distinct(&slots[..count]) {
                best = Some((cost, pilot));
            }
        }
        best.map(|(_, pilot)| pilot)
    }

    /// Gives `bucket` the slots of `pilot` and evicts their owners.
    fn take(&mut self, bucket: u32, pilot: u8, evicted: &mut Vec<u32>) {
        let slots: Vec<usize> = self.slots_of(bucket, pilot).collect();
        for slot in slots {
            let owner = self.owners[slot];
            if owner != FREE {
                let freed: Vec<usize> = self.slots_of(owner, self.pilots[owner as usize]).collect();
                for slot in freed {
                    self.owners[slot] = FREE;
                }
                evicted.push(owner);
            }
            self.owners[slot] = bucket;
        }
        self.pilots[bucket as usize] = pilot;
    }
}

fn all_distinct(slots: &[usize]) -> bool {
    slots.iter().enumerate().all(|(position, slot)| !slots[..position].contains(slot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_hash_has_its_own_slot() {
        for count in [0usize, 1, 2, 3, 10, 1000, 50_000] {
            let hashes: Vec<u64> = (0..count as u64).map(hash::mix).collect();
            let pilots = Pilots::build(&hashes).expect("distinct hashes have an index");
            let slots: BTreeSet<u32> = hashes.iter().map(|&hash| pilots.slot(hash)).collect();
            assert_eq!(slots.len(), count);
            assert!(slots.last().is_none_or(|&last| last < pilots.slots));
        }
    }

    /// The hash that is `within` a part under the public seed `attempt`: anybody can compute it.
    fn undo(within: u64, attempt: u64) -> u64 {
        let x = within ^ (within >> 32);
        let mut inverse = 1u64;
        for _ in 0..6 {
            inverse =
                inverse.wrapping_mul(2u64.wrapping_sub(0xff51_afd7_ed55_8ccd_u64.wrapping_mul(inverse)));
        }
        x.wrapping_mul(inverse) ^ hash::seed(attempt)
    }

    #[test]
    fn hashes_that_share_a_bucket_under_the_first_seed_get_another_seed() {
        let hashes: Vec<u64> = (0..1000).map(|within| undo(within, 0)).collect();
        assert!(hashes.iter().enumerate().all(|(n, &hash)| hash::within(hash, hash::seed(0)) == n as u64));
        let pilots = Pilots::build(&hashes).expect("another seed separates them");
        assert_eq!(pilots.seed, hash::seed(1));
    }

    /// 65 keys for each of 64 seeds, which were all that there were, let every build and export of their table fail.
    #[test]
    fn keys_chosen_to_collide_under_all_public_seeds_get_a_drawn_one() {
        let hashes: Vec<u64> =
            (0..64).flat_map(|attempt| (0..65).map(move |within| undo(within, attempt))).collect();
        let pilots = Pilots::build(&hashes).expect("a drawn seed separates them");
        assert!((0..PUBLIC_SEEDS).all(|attempt| hash::seed(attempt) != pilots.seed));
        let slots: BTreeSet<u32> = hashes.iter().map(|&hash| pilots.slot(hash)).collect();
        assert_eq!(slots.len(), 4160);
    }

    #[test]
    fn equal_hashes_have_no_index() {
        assert_eq!(Pilots::build(&[7, 7]), None);
    }
}
