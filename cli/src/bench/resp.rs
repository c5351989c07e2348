//! `quoin bench resp`: keys over Redis's protocol. It measures Redis with the very same code.
//!
//! `driver.rs` makes the load, `reply.rs` finds where replies end.

pub(super) mod driver;
pub(super) mod reply;

use super::targets::Random;
use super::{Data, Load, load, name_of, report};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use driver::{Script, Shape};
use std::sync::Arc;

/// A run over keys. Each client has a connection of its own.
#[derive(Args, Clone, Debug)]
pub(crate) struct RespBench {
    /// What is done
    #[arg(value_enum, required = true)]
    cases: Vec<Case>,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    wire: Wire,
    #[command(flatten)]
    load: Load,
}

/// How requests go over the wire.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Requests that a connection sends together (over Redis's protocol)
    #[arg(long, default_value_t = 1)]
    pub(super) pipeline: usize,
    /// Threads that make the load (over Redis's protocol)
    #[arg(long, default_value_t = 1)]
    pub(super) threads: usize,
}

impl Wire {
    pub(super) fn shape(&self) -> Result<Shape> {
        ensure!(self.pipeline > 0 && self.threads > 0, "--pipeline and --threads must be above 0");
        Ok(Shape { pipeline: self.pipeline, threads: self.threads })
    }

    /// What a case is called in the report.
    pub(super) fn name(&self, case: String) -> String {
        if self.pipeline == 1 { case } else { format!("{case} x{}", self.pipeline) }
    }
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Write a random key
    Set,
    /// Read a random written key; linearizable, where the server knows that
    Get,
    /// Read a random written key from the replica's own state (READONLY)
    GetLocal,
}

/// Runs all cases, one after the other.
pub(super) async fn run(mut options: RespBench) -> Result<()> {
    ensure!(options.data.keys > 0 && options.data.keys <= 1_000_000_000_000, "--keys must be 1 to 10^12");
    let shape = options.wire.shape()?;
    let endpoints = options.load.resolve_resp().await?;
    let words = Arc::new(Words::new(options.data.value_bytes));
    let mut report = report::Report::new(options.load.json);
    for case in options.cases.clone() {
        if case != Case::Set {
            let (endpoints, words, keys) = (endpoints.clone(), Arc::clone(&words), options.data.keys);
            let every = move || {
                driver::fill(
                    &endpoints,
                    (0..keys).map(|key| {
                        let words = &words;
                        move |out: &mut Vec<u8>| words.set(key, out)
                    }),
                )
            };
            tokio::task::spawn_blocking(every).await??;
        }
        let hello: &[&str] = if case == Case::GetLocal { &["READONLY"] } else { &[] };
        let connections = driver::connect(&endpoints, options.load.clients, hello)?;
        let script = |number: usize| Keys {
            words: Arc::clone(&words),
            reads: case != Case::Set,
            keys: options.data.keys,
            random: Random::seeded(number as u64 + 1),
        };
        let plan = options.load.plan();
        let counted = load::run(&plan, &options.load.server_pids, |shared| {
            driver::clients(&plan, shape, connections, shared, script)
        });
        let setting = options.load.setting(options.data.value_bytes);
        report.add(report::Outcome::new(options.wire.name(name_of(case)), setting, counted.await?))?;
    }
    report.end()
}

/// Requests and answers, but for the keys.
struct Words {
    value: Vec<u8>,
    set_tail: Vec<u8>,
    answer_head: Vec<u8>,
}

/// A key's digits, with as many zeros as make it as long as all others.
const DIGITS: usize = 12;
const SET_HEAD: &[u8] = b"*3\r\n$3\r\nSET\r\n$18\r\nbench/";
const GET_HEAD: &[u8] = b"*2\r\n$3\r\nGET\r\n$18\r\nbench/";

impl Words {
    fn new(value_bytes: usize) -> Self {
        // Not all alike: a server that compresses must not gain by it.
        let mut random = Random::seeded(0x5eed);
        let value: Vec<u8> = (0..value_bytes).map(|_| random.next() as u8).collect();
        let answer_head = format!("${value_bytes}\r\n").into_bytes();
        let set_tail = [b"\r\n", &answer_head[..], &value, b"\r\n"].concat();
        Self { value, set_tail, answer_head }
    }

    fn set(&self, key: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(SET_HEAD);
        digits(key, out);
        out.extend_from_slice(&self.set_tail);
    }

    fn get(&self, key: u64, out: &mut Vec<u8>) {
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
struct Keys {
    words: Arc<Words>,
    reads: bool,
    keys: u64,
    random: Random,
}

impl Script for Keys {
    fn request(&mut self, out: &mut Vec<u8>) -> u64 {
        let key = self.random.next() % self.keys;
        if self.reads {
            self.words.get(key, out)
        } else {
            self.words.set(key, out)
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
    use super::*;

    #[test]
    fn requests_are_what_the_protocol_says() {
        let words = Words::new(3);
        let (mut set, mut get, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        words.set(42, &mut set);
        driver::words(&mut wanted, &[b"SET", b"bench/000000000042", &words.value]);
        assert_eq!(set, wanted);
        words.get(7, &mut get);
        wanted.clear();
        driver::words(&mut wanted, &[b"GET", b"bench/000000000007"]);
        assert_eq!(get, wanted);
    }
}
