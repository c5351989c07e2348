//! Lookups over Redis's protocol: TABLE.LOOKUP, TABLE.MGET, and MGET of a Redis with the same keys and
//! values.

use crate::resp::driver::Script;
use crate::resp::reply;
use crate::resp::request::{decimal, words};
use crate::sample_table::{Keys, VALUE_BYTES, value};
use anyhow::{Context, Result, ensure};

/// The command of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// TABLE.LOOKUP: all keys in one string.
    Lookup,
    /// TABLE.MGET: decimal keys.
    TableMget,
    /// Redis's MGET, or GET for one key: decimal keys.
    Mget,
}

/// Batches of random keys of the sample table.
pub(super) struct Batches {
    ask: Ask,
    keys: Keys,
    /// Keys per request.
    batch: usize,
    /// The start of a request, the same for all.
    head: Vec<u8>,
}

impl Batches {
    pub(super) fn new(ask: Ask, table: &str, keys: u64, batch: usize, seed: u64) -> Self {
        let mut head = Vec::new();
        match ask {
            Ask::Lookup => {
                words(&mut head, &[b"TABLE.LOOKUP", table.as_bytes()]);
                head.extend_from_slice(format!("${}\r\n", 8 * batch).as_bytes());
                count(&mut head, 3);
            }
            Ask::TableMget => {
                words(&mut head, &[b"TABLE.MGET", table.as_bytes()]);
                count(&mut head, batch + 2);
            }
            Ask::Mget => {
                words(&mut head, if batch == 1 { &[b"GET"] } else { &[b"MGET"] });
                count(&mut head, batch + 1);
            }
        }
        Self { ask, keys: Keys::new(keys, seed), batch, head }
    }

    fn check_lookup(&self, reply: &[u8]) -> Option<()> {
        let (found, rest) = reply::bulk(reply::after_line(reply::after_line(reply, b'*')?, b':')?)?;
        let (values, _) = reply::bulk(rest)?;
        let all: u32 = found.iter().map(|byte| byte.count_ones()).sum();
        (all as usize == self.batch && values.len() == self.batch * VALUE_BYTES).then_some(())
    }
}

/// Replaces the number of words in a request's first line.
fn count(head: &mut Vec<u8>, words: usize) {
    let end = head.iter().position(|byte| *byte == b'\n').expect("a request begins with a line");
    head.splice(..=end, format!("*{words}\r\n").into_bytes());
}

/// Appends Redis's SET of a key of the sample table.
pub(super) fn set(key: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
    decimal(key, out);
    out.extend_from_slice(format!("${VALUE_BYTES}\r\n").as_bytes());
    out.extend_from_slice(&value(key));
    out.extend_from_slice(b"\r\n");
}

impl Script for Batches {
    fn request(&mut self, out: &mut Vec<u8>) -> u64 {
        out.extend_from_slice(&self.head);
        let mut last = 0;
        for _ in 0..self.batch {
            last = self.keys.draw();
            match self.ask {
                Ask::Lookup => out.extend_from_slice(&last.to_le_bytes()),
                Ask::TableMget | Ask::Mget => decimal(last, out),
            }
        }
        if self.ask == Ask::Lookup {
            out.extend_from_slice(b"\r\n");
        }
        last
    }

    fn check(&mut self, last: u64, reply: &[u8]) -> Result<()> {
        if self.ask == Ask::Lookup {
            self.check_lookup(reply).with_context(|| format!("not all of {} keys were found", self.batch))?;
        } else {
            let one = self.ask == Ask::Mget && self.batch == 1;
            let head = if one { 0 } else { 3 + self.batch.to_string().len() };
            // A null is shorter than a value.
            let length = head + self.batch * (7 + VALUE_BYTES);
            ensure!(reply.len() == length, "not all of {} keys were found", self.batch);
        }
        let right = reply.strip_suffix(b"\r\n").is_some_and(|reply| reply.ends_with(&value(last)));
        ensure!(right, "key {last} has a wrong value");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(request: &[u8]) -> Vec<&[u8]> {
        let mut rest = reply::after_line(request, b'*').unwrap();
        let mut words = Vec::new();
        while !rest.is_empty() {
            let (word, after) = reply::bulk(rest).unwrap();
            words.push(word);
            rest = after;
        }
        assert_eq!(request.strip_prefix(format!("*{}\r\n", words.len()).as_bytes()).map(|_| ()), Some(()));
        words
    }

    #[test]
    fn requests_follow_the_protocol_and_wrong_answers_are_refused() {
        for (ask, name) in
            [(Ask::Lookup, &b"TABLE.LOOKUP"[..]), (Ask::TableMget, b"TABLE.MGET"), (Ask::Mget, b"MGET")]
        {
            let mut batches = Batches::new(ask, "t", 50, 3, 1);
            let mut request = Vec::new();
            let last = batches.request(&mut request);
            let words = words_of(&request);
            assert_eq!(words[0], name);
            let keys: Vec<u64> = if ask == Ask::Lookup {
                words[2].chunks(8).map(|key| u64::from_le_bytes(key.try_into().unwrap())).collect()
            } else {
                let keys = &words[if ask == Ask::Mget { 1 } else { 2 }..];
                keys.iter().map(|key| std::str::from_utf8(key).unwrap().parse().unwrap()).collect()
            };
            assert_eq!((keys.len(), keys[2]), (3, last));
            let values: Vec<[u8; VALUE_BYTES]> = keys.iter().map(|key| value(*key)).collect();
            let answer = |values: &[[u8; VALUE_BYTES]]| {
                let mut reply = Vec::new();
                if ask == Ask::Lookup {
                    reply.extend_from_slice(b"*3\r\n:1\r\n$1\r\n\x07\r\n");
                    reply.extend_from_slice(format!("${}\r\n", values.len() * VALUE_BYTES).as_bytes());
                    reply.extend_from_slice(&values.concat());
                    reply.extend_from_slice(b"\r\n");
                } else {
                    self::words(&mut reply, &values.iter().map(|value| &value[..]).collect::<Vec<_>>());
                }
                reply
            };
            batches.check(last, &answer(&values)).unwrap();
            assert!(batches.check(last, &answer(&values[1..])).is_err());
            assert!(batches.check(last, &answer(&[values[0], values[2], values[1]])).is_err());
        }
    }
}
