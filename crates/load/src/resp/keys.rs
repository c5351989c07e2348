//! SET and GET of random keys, all of the same length, so that a request is mostly a copy of prepared bytes.

use super::driver::Script;
use crate::random::Random;
use anyhow::{Result, ensure};
use std::sync::Arc;

/// Digits of a key's number, with leading zeros.
const DIGITS: usize = 12;
/// Largest number of keys.
pub(super) const KEYS_MAX: u64 = 10_u64.pow(DIGITS as u32);
const SET_HEAD: &[u8] = b"*3\r\n$3\r\nSET\r\n$18\r\nbench/";
const GET_HEAD: &[u8] = b"*2\r\n$3\r\nGET\r\n$18\r\nbench/";

/// The parts of requests and answers that do not depend on the key.
pub(super) struct Words {
    value: Vec<u8>,
    set_tail: Vec<u8>,
    answer_head: Vec<u8>,
}

impl Words {
    pub(super) fn new(value_bytes: usize) -> Self {
        let value = Random::value(value_bytes);
        let answer_head = format!("${value_bytes}\r\n").into_bytes();
        let set_tail = [b"\r\n", &answer_head[..], &value, b"\r\n"].concat();
        Self { value, set_tail, answer_head }
    }

    /// Appends a SET.
    pub(super) fn set(&self, key: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(SET_HEAD);
        digits(key, out);
        out.extend_from_slice(&self.set_tail);
    }

    /// Appends a GET.
    fn get(key: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(GET_HEAD);
        digits(key, out);
        out.extend_from_slice(b"\r\n");
    }
}

fn digits(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits);
}

/// Writes or reads random keys.
pub(super) struct Keys {
    words: Arc<Words>,
    reads: bool,
    keys: u64,
    random: Random,
}

impl Keys {
    pub(super) fn new(words: &Arc<Words>, reads: bool, keys: u64, seed: u64) -> Self {
        Self { words: Arc::clone(words), reads, keys, random: Random::seeded(seed) }
    }
}

impl Script for Keys {
    fn request(&mut self, out: &mut Vec<u8>) -> u64 {
        let key = self.random.next() % self.keys;
        if self.reads {
            Words::get(key, out);
        } else {
            self.words.set(key, out);
        }
        key
    }

    fn check(&mut self, key: u64, reply: &[u8]) -> Result<()> {
        if self.reads {
            let words = &self.words;
            let length = words.answer_head.len() + words.value.len() + 2;
            let right = reply.starts_with(&words.answer_head) && reply.len() == length;
            ensure!(right, "key {key} has no value of {} bytes", words.value.len());
        } else {
            ensure!(reply == b"+OK\r\n", "SET was answered {:?}", reply.escape_ascii().to_string());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::request;
    use super::*;

    #[test]
    fn requests_are_what_the_protocol_says() {
        let words = Words::new(3);
        let (mut set, mut get, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        words.set(42, &mut set);
        request::words(&mut wanted, &[b"SET", b"bench/000000000042", &words.value]);
        assert_eq!(set, wanted);
        Words::get(7, &mut get);
        wanted.clear();
        request::words(&mut wanted, &[b"GET", b"bench/000000000007"]);
        assert_eq!(get, wanted);
    }
}
