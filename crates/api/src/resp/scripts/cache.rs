//! The scripts that a node knows by their SHA1: those that EVAL ran or SCRIPT LOAD brought, here.
//!
//! **Invariant: Bounded.** They take at most [`BYTES_MAX`]; beyond that those are forgotten that were not used for
//! the longest time, and EVALSHA says NOSCRIPT, after which clients send the whole script again.

use super::native::sha1_hex;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Maximum bytes of a script: reading it is not ended by its time.
pub(super) const SCRIPT_BYTES_MAX: usize = if cfg!(test) { 100 << 10 } else { 1 << 20 };
const BYTES_MAX: usize = if cfg!(test) { 4 << 10 } else { 32 << 20 };
/// What a script costs besides its bytes.
const OVERHEAD_BYTES: usize = 256;

/// A script.
#[derive(Debug)]
pub(super) struct Script {
    /// In hexadecimal, lower case.
    pub(super) sha: String,
    /// Without its first line, if that is a shebang.
    pub(super) chunk: Bytes,
    /// What its shebang says; `None` without one.
    pub(super) writes: Option<bool>,
    bytes: usize,
}

impl Script {
    /// # Errors
    /// It is too long, or its shebang is wrong.
    pub(super) fn new(body: &[u8]) -> Result<Self, String> {
        if body.len() > SCRIPT_BYTES_MAX {
            return Err(format!(
                "ERR a script of {} bytes; at most {SCRIPT_BYTES_MAX} are allowed",
                body.len()
            ));
        }
        let (writes, chunk) = match body.strip_prefix(b"#!") {
            None => (None, body),
            Some(rest) => {
                // The line's end stays, for the numbers of lines.
                let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                    return Err("ERR Invalid script shebang".into());
                };
                (Some(may_write(&String::from_utf8_lossy(&rest[..end]))?), &rest[end..])
            }
        };
        let (sha, chunk) = (sha1_hex(body), Bytes::copy_from_slice(chunk));
        Ok(Self { sha, chunk, writes, bytes: body.len() + OVERHEAD_BYTES })
    }
}

/// What a shebang says, without its `#!`.
fn may_write(line: &str) -> Result<bool, String> {
    let mut words = line.split_ascii_whitespace();
    let engine = words.next().unwrap_or_default();
    if engine != "lua" {
        return Err(format!("ERR Unexpected engine in script shebang: #!{engine}"));
    }
    let mut writes = true;
    for word in words {
        let Some(flags) = word.strip_prefix("flags=") else {
            return Err(format!("ERR Unknown lua shebang option: {word}"));
        };
        for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
            match flag {
                "no-writes" => writes = false,
                "allow-oom" | "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                _ => return Err(format!("ERR Unexpected flag in script shebang: {flag}")),
            }
        }
    }
    Ok(writes)
}

/// See the module.
#[derive(Default)]
pub(super) struct Cache {
    /// Each with when it was used last.
    scripts: HashMap<String, (Arc<Script>, u64)>,
    by_use: BTreeMap<u64, String>,
    uses: u64,
    bytes: usize,
}

impl Cache {
    /// The script with this SHA1, in any case.
    pub(super) fn find(&mut self, sha: &[u8]) -> Option<Arc<Script>> {
        let sha = std::str::from_utf8(sha).ok()?.to_ascii_lowercase();
        let (script, used) = self.scripts.get_mut(&sha)?;
        self.uses += 1;
        self.by_use.remove(used);
        *used = self.uses;
        self.by_use.insert(self.uses, sha);
        Some(Arc::clone(script))
    }

    pub(super) fn insert(&mut self, script: &Arc<Script>) {
        if self.find(script.sha.as_bytes()).is_some() {
            return;
        }
        self.uses += 1;
        self.bytes += script.bytes;
        self.by_use.insert(self.uses, script.sha.clone());
        self.scripts.insert(script.sha.clone(), (Arc::clone(script), self.uses));
        while self.bytes > BYTES_MAX
            && let Some((_, sha)) = self.by_use.pop_first()
        {
            let forgotten = self.scripts.remove(&sha);
            self.bytes -= forgotten.map_or(0, |(script, _)| script.bytes);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self { uses: self.uses, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_were_not_used_for_long_are_forgotten() {
        let mut cache = Cache::default();
        let scripts =
            ["a", "b", "c", "d"].map(|byte| Arc::new(Script::new(byte.repeat(1000).as_bytes()).unwrap()));
        let [first, second, third, fourth] = &scripts;
        for script in [first, second, third] {
            cache.insert(script);
        }
        assert!(cache.find(first.sha.to_ascii_uppercase().as_bytes()).is_some());
        cache.insert(fourth);
        let known: Vec<bool> =
            scripts.iter().map(|script| cache.find(script.sha.as_bytes()).is_some()).collect();
        assert_eq!(known, [true, false, true, true]);
        assert_eq!(cache.bytes, 3 * (1000 + OVERHEAD_BYTES));
        cache.clear();
        assert!(cache.find(first.sha.as_bytes()).is_none() && cache.bytes == 0);
    }
}
