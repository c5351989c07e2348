//! What decoding a Protocol Buffers message takes in memory, told before it is decoded: an empty element of a
//! repeated field has two bytes, and takes up to a hundred times as many.
//!
//! **Invariant: Bounded.** Decoding may take [`DECODED_BYTES_MAX`], and in proportion to what was sent less:
//! [`DECODED_BYTES_FREE`] and [`DECODED_RATIO_MAX`] times its length.
//!
//! A message is walked along its [`Costs`], which name the fields that cost more than they have bytes. The
//! walk ends where the message is malformed, as the decoder will. `quoin-proto` compiles this file too, for
//! requests: neither crate may depend on the other.

/// What any message may take.
pub(crate) const DECODED_BYTES_MAX: usize = 64 << 20;
/// What a message may take however short it is.
pub(crate) const DECODED_BYTES_FREE: usize = 1 << 20;
/// How many times its own length a message may take on top of that. A deletion of a key of one byte, one of
/// many steps, takes 23 times its length.
pub(crate) const DECODED_RATIO_MAX: usize = 32;
/// Messages up to this length are not walked: no field costs more than [`PART_BYTES_MAX`].
const SHORT_BYTES: usize = 4096;
/// Maximum bytes that an element may take for its two bytes on the wire.
const PART_BYTES_MAX: usize = DECODED_BYTES_FREE / (SHORT_BYTES / 2);
/// Decoders refuse messages nested more deeply than this.
const DEPTH_MAX: u32 = 100;

/// The fields of a message that cost memory besides the message's own, by their numbers.
#[derive(Debug)]
pub(crate) struct Costs(pub(crate) &'static [(u32, Part)]);

/// What a field costs, each time it comes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// A message: the bytes that it takes besides the one that holds it, and its own fields.
    Message(usize, &'static Costs),
    /// A string or byte string: bytes besides its content.
    Bytes(usize),
    /// Numbers of variable length, alone or packed: bytes that each takes.
    Varints(usize),
    /// Numbers of fixed length, alone or packed, which take what they have on the wire.
    Fixed,
}

/// Whether decoding `message` stays within the bounds.
pub(crate) fn fits(message: &[u8], costs: &Costs) -> bool {
    if message.len() <= SHORT_BYTES {
        return true;
    }
    let most = DECODED_BYTES_FREE.saturating_add(message.len().saturating_mul(DECODED_RATIO_MAX));
    walk(message, costs, DEPTH_MAX, &mut most.min(DECODED_BYTES_MAX))
}

/// Takes what the message costs from `left`; false if that is too little.
fn walk(mut rest: &[u8], costs: &Costs, depth: u32, left: &mut usize) -> bool {
    while let Some(key) = varint(&mut rest) {
        let content = match key & 7 {
            0 if varint(&mut rest).is_some() => None,
            1 if rest.len() >= 8 => take(&mut rest, 8),
            2 => match varint(&mut rest).and_then(|length| take(&mut rest, usize::try_from(length).ok()?)) {
                Some(content) => Some(content),
                None => return true,
            },
            5 if rest.len() >= 4 => take(&mut rest, 4),
            // A group: decoders skip it, and go on behind it. No version ever had one.
            3 => return false,
            _ => return true,
        };
        let part = costs.0.iter().find(|(number, _)| u64::from(*number) == key >> 3).map(|(_, part)| *part);
        let bytes = match (part, content) {
            (None, _) | (Some(Part::Message(..) | Part::Bytes(_)), None) => 0,
            (Some(Part::Message(bytes, inner)), Some(content)) => {
                if depth == 0 || !walk(content, inner, depth - 1, left) {
                    return false;
                }
                bytes
            }
            (Some(Part::Bytes(bytes)), Some(_)) => bytes,
            (Some(Part::Varints(bytes)), None) => bytes,
            (Some(Part::Varints(bytes)), Some(packed)) => {
                bytes * packed.iter().filter(|byte| **byte < 0x80).count()
            }
            (Some(Part::Fixed), content) => content.map_or(0, <[u8]>::len),
        };
        let Some(less) = left.checked_sub(bytes) else { return false };
        *left = less;
    }
    true
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (front, back) = rest.split_at_checked(length)?;
    *rest = back;
    Some(front)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for place in 0..10 {
        let (byte, back) = rest.split_first()?;
        *rest = back;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

impl Costs {
    /// Whether every part keeps the bound that short messages rely on.
    pub(crate) const fn is_sound(&self) -> bool {
        let mut place = 0;
        while place < self.0.len() {
            let (Part::Message(bytes, _) | Part::Bytes(bytes) | Part::Varints(bytes)) = self.0[place].1
            else {
                place += 1;
                continue;
            };
            if bytes > PART_BYTES_MAX {
                return false;
            }
            place += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LEAF: Costs = Costs(&[(2, Part::Varints(8)), (3, Part::Bytes(24)), (4, Part::Fixed)]);
    static NODE: Costs = Costs(&[(1, Part::Message(100, &NODE)), (2, Part::Message(0, &LEAF))]);

    /// A field of the length-delimited kind.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let (mut out, mut length) = (vec![number << 3 | 2], content.len());
        while length >= 0x80 {
            out.push(length as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        [out, content.to_vec()].concat()
    }

    #[test]
    fn what_costs_more_than_it_may_is_refused_and_all_else_is_not() {
        assert!(NODE.is_sound() && LEAF.is_sound());
        let empty = |count| field(1, &[]).repeat(count);
        // Each takes 100 bytes for 2, of which 64 and a share of the first MiB are allowed.
        assert!(fits(&empty(2000), &NODE) && fits(&empty(29_000), &NODE));
        assert!(!fits(&empty(30_000), &NODE) && !fits(&empty(3_000_000), &NODE));
        assert!(fits(&field(1, &[7; 60]).repeat(30_000), &NODE), "they are longer");
        assert!(
            !fits(&field(1, &[1 << 3, 0]).repeat(1_000_000), &NODE),
            "nothing takes more than the maximum"
        );
        // However it is nested.
        assert!(!fits(&field(1, &field(1, &empty(30_000))), &NODE));
        assert!(fits(&field(5, &empty(30_000)), &NODE), "a field that decoders skip");
        let deep = (0..200).fold(vec![0; 5000], |inner, _| field(1, &inner));
        assert!(!fits(&deep, &NODE));
    }

    #[test]
    fn numbers_and_strings_are_charged_alone_and_packed() {
        let packed = |number, content: &[u8]| field(2, &field(number, content));
        assert!(fits(&packed(2, &[1; 5_000_000]), &NODE), "40 MB of numbers");
        assert!(!fits(&packed(2, &[1; 9_000_000]), &NODE), "72 MB");
        assert!(fits(&packed(2, &[0x80; 9_000_000]), &NODE), "they never end");
        assert!(fits(&packed(4, &[0; 60_000_000]), &NODE) && !fits(&packed(4, &[0; 70_000_000]), &NODE));
        assert!(fits(&field(2, &field(3, &[]).repeat(2_000_000)), &NODE));
        assert!(!fits(&field(2, &field(3, &[]).repeat(3_000_000)), &NODE));
        assert!(!fits(&field(2, &[2 << 3, 1].repeat(9_000_000)), &NODE));
    }

    #[test]
    fn a_malformed_message_ends_the_walk_and_a_group_is_refused() {
        let long = vec![0xff; 5000];
        for malformed in [&[7][..], &[1 << 3 | 2, 0xff], &[1 << 3 | 1, 0], &[1 << 3 | 5], &[1 << 3 | 4]] {
            assert!(fits(&[malformed, &long].concat(), &NODE), "{malformed:?}");
        }
        assert!(!fits(&[&[9 << 3 | 3][..], &long].concat(), &NODE));
    }
}
