//! Lua 5.1's patterns (<https://www.lua.org/manual/5.1/manual.html#5.4.1>), matched here because Lua's own C code
//! can neither be ended nor bounds its stack.
//!
//! **Invariant: Bounded.** A pattern recurses at most [`DEPTH_MAX`] deep, and its steps are counted: a match that
//! takes too long ends when its script's time does.

use super::stop::Stop;
use std::ops::Range;

/// How deep repetitions nest, as in newer versions of Lua.
const DEPTH_MAX: usize = 200;
const CAPTURES_MAX: usize = 32;
/// The script's time is looked at after so many steps.
const STEPS: u32 = 1 << 14;

const ESCAPE: u8 = b'%';
const SPECIALS: &[u8] = b"^$*+?.([%-";

/// Why there is no answer: an error of the script.
pub(super) type Problem = String;

/// What a pair of parentheses matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    Open(usize),
    Text(usize, usize),
    /// `()`: where it stands.
    Position(usize),
}

/// A match: what it covers, and its captures.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) place: Range<usize>,
    pub(super) captures: Vec<Capture>,
}

/// Whether the pattern is to be looked for as it is.
pub(super) fn is_plain(pattern: &[u8]) -> bool {
    !until_nul(pattern).iter().any(|byte| SPECIALS.contains(byte))
}

/// Lua 5.1 ends a pattern at a zero byte.
fn until_nul(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| *byte == 0);
    &pattern[..end.unwrap_or(pattern.len())]
}

/// The first match that begins at `from` or later. With `anchors`, `^` at the beginning allows only `from`.
///
/// # Errors
/// The pattern is malformed, or the script's time is over.
pub(super) fn find(
    text: &[u8],
    pattern: &[u8],
    from: usize,
    anchors: bool,
    stop: &Stop,
) -> Result<Option<Match>, Problem> {
    let pattern = until_nul(pattern);
    let anchored = anchors && pattern.first() == Some(&b'^');
    let pattern = if anchored { &pattern[1..] } else { pattern };
    let mut matcher = Matcher { text, pattern, captures: Vec::new(), depth: 0, steps: 0, stop };
    for start in from..=text.len() {
        matcher.captures.clear();
        if let Some(end) = matcher.run(start, 0)? {
            if matcher.captures.iter().any(|capture| matches!(capture, Capture::Open(_))) {
                return Err("unfinished capture".into());
            }
            return Ok(Some(Match { place: start..end, captures: matcher.captures }));
        }
        if anchored {
            break;
        }
    }
    Ok(None)
}

struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<Capture>,
    depth: usize,
    steps: u32,
    stop: &'a Stop,
}

type Found = Result<Option<usize>, Problem>;

impl Matcher<'_> {
    /// Where the pattern from `p` on ends when it begins at `s` of the text.
    fn run(&mut self, s: usize, p: usize) -> Found {
        if self.depth >= DEPTH_MAX {
            return Err("pattern too complex".into());
        }
        self.depth += 1;
        let found = self.items(s, p);
        self.depth -= 1;
        found
    }

    fn step(&mut self) -> Result<(), Problem> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS) && self.stop.is_over() {
            return Err("the script's time is over".into());
        }
        Ok(())
    }

    fn at(&self, p: usize) -> Option<u8> {
        self.pattern.get(p).copied()
    }

    /// As [`Self::run`], without the bound: it takes one item after the other.
    fn items(&mut self, mut s: usize, mut p: usize) -> Found {
        loop {
            self.step()?;
            match (self.at(p), self.at(p + 1)) {
                (None, _) => return Ok(Some(s)),
                (Some(b'('), Some(b')')) => return self.open(s, p + 2, Capture::Position(s)),
                (Some(b'('), _) => return self.open(s, p + 1, Capture::Open(s)),
                (Some(b')'), _) => return self.close(s, p + 1),
                (Some(b'$'), None) => return Ok((s == self.text.len()).then_some(s)),
                (Some(ESCAPE), Some(b'b')) => match self.balanced(s, p + 2)? {
                    Some(end) => (s, p) = (end, p + 4),
                    None => return Ok(None),
                },
                (Some(ESCAPE), Some(b'f')) => {
                    p += 2;
                    if self.at(p) != Some(b'[') {
                        return Err("missing '[' after '%f' in pattern".into());
                    }
                    let end = self.class_end(p)?;
                    let before = s.checked_sub(1).map_or(0, |before| self.text[before]);
                    let here = self.text.get(s).copied().unwrap_or(0);
                    if self.set(before, p, end - 1) || !self.set(here, p, end - 1) {
                        return Ok(None);
                    }
                    p = end;
                }
                (Some(ESCAPE), Some(digit)) if digit.is_ascii_digit() => match self.again(s, digit)? {
                    Some(end) => (s, p) = (end, p + 2),
                    None => return Ok(None),
                },
                _ => {
                    let end = self.class_end(p)?;
                    let fits = self.fits(s, p, end);
                    match self.at(end) {
                        Some(b'?') => {
                            if fits && let Some(found) = self.tried(s + 1, end + 1)? {
                                return Ok(Some(found));
                            }
                            p = end + 1;
                        }
                        Some(b'*') => return self.most(s, p, end),
                        Some(b'+') => return if fits { self.most(s + 1, p, end) } else { Ok(None) },
                        Some(b'-') => return self.fewest(s, p, end),
                        _ if !fits => return Ok(None),
                        _ => (s, p) = (s + 1, end),
                    }
                }
            }
        }
    }

    /// As [`Self::run`]; without a match the captures are as before.
    fn tried(&mut self, s: usize, p: usize) -> Found {
        let before = self.captures.len();
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures.truncate(before);
        }
        Ok(found)
    }

    /// As many as possible, then fewer until the rest fits.
    fn most(&mut self, s: usize, p: usize, end: usize) -> Found {
        let mut count = 0;
        while self.fits(s + count, p, end) {
            self.step()?;
            count += 1;
        }
        loop {
            if let Some(found) = self.tried(s + count, end + 1)? {
                return Ok(Some(found));
            }
            match count.checked_sub(1) {
                Some(fewer) => count = fewer,
                None => return Ok(None),
            }
        }
    }

    /// As few as possible, then more until the rest fits.
    fn fewest(&mut self, mut s: usize, p: usize, end: usize) -> Found {
        loop {
            if let Some(found) = self.tried(s, end + 1)? {
                return Ok(Some(found));
            }
            if !self.fits(s, p, end) {
                return Ok(None);
            }
            self.step()?;
            s += 1;
        }
    }

    fn open(&mut self, s: usize, p: usize, capture: Capture) -> Found {
        if self.captures.len() >= CAPTURES_MAX {
            return Err("too many captures".into());
        }
        self.captures.push(capture);
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures.pop();
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Found {
        let open = self.captures.iter().rposition(|capture| matches!(capture, Capture::Open(_)));
        let Some(number) = open else { return Err("invalid pattern capture".into()) };
        let before = self.captures[number];
        if let Capture::Open(from) = before {
            self.captures[number] = Capture::Text(from, s);
        }
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures[number] = before;
        }
        Ok(found)
    }

    /// `%bxy`, with `p` at `x`.
    fn balanced(&mut self, s: usize, p: usize) -> Found {
        let (Some(open), Some(close)) = (self.at(p), self.at(p + 1)) else {
            return Err("unbalanced pattern".into());
        };
        if self.text.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1;
        for at in s + 1..self.text.len() {
            self.step()?;
            let byte = self.text[at];
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// `%1` and the like: what a capture matched, again.
    fn again(&self, s: usize, digit: u8) -> Found {
        let capture = usize::from(digit).checked_sub(usize::from(b'1')).and_then(|at| self.captures.get(at));
        match capture {
            Some(Capture::Text(from, to)) => {
                let wanted = &self.text[*from..*to];
                Ok(self.text[s..].starts_with(wanted).then_some(s + wanted.len()))
            }
            // Of no length that could fit.
            Some(Capture::Position(_)) => Ok(None),
            Some(Capture::Open(_)) | None => Err("invalid capture index".into()),
        }
    }

    /// Where the item that begins at `p` ends.
    fn class_end(&self, p: usize) -> Result<usize, Problem> {
        const MISSING: &str = "malformed pattern (missing ']')";
        match self.at(p) {
            Some(ESCAPE) if p + 1 == self.pattern.len() => Err("malformed pattern (ends with '%')".into()),
            Some(ESCAPE) => Ok(p + 2),
            Some(b'[') => {
                let mut p = p + 1 + usize::from(self.at(p + 1) == Some(b'^'));
                // Its first byte belongs to it, whatever it is.
                loop {
                    match self.at(p) {
                        None => return Err(MISSING.into()),
                        Some(ESCAPE) if p + 1 < self.pattern.len() => p += 2,
                        Some(_) => p += 1,
                    }
                    if self.at(p) == Some(b']') {
                        return Ok(p + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    fn fits(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(s) else { return false };
        match self.pattern[p] {
            b'.' => true,
            ESCAPE => class(byte, self.pattern[p + 1]),
            b'[' => self.set(byte, p, end - 1),
            literal => literal == byte,
        }
    }

    /// Whether a byte is in the set whose `[` is at `p` and whose `]` at `end`.
    fn set(&self, byte: u8, mut p: usize, end: usize) -> bool {
        let negated = self.pattern[p + 1] == b'^';
        p += 1 + usize::from(negated);
        while p < end {
            let found = if self.pattern[p] == ESCAPE {
                p += 1;
                class(byte, self.pattern[p])
            } else if self.pattern[p + 1] == b'-' && p + 2 < end {
                p += 2;
                (self.pattern[p - 2]..=self.pattern[p]).contains(&byte)
            } else {
                self.pattern[p] == byte
            };
            if found {
                return !negated;
            }
            p += 1;
        }
        negated
    }
}

/// Whether a byte is of the class that a letter stands for; in upper case, of all others.
fn class(byte: u8, letter: u8) -> bool {
    let found = match letter.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return letter == byte,
    };
    found != letter.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::scripts::machine::Machine;
    use mlua::{Lua, Value};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn stop() -> Stop {
        let stop = Stop::new(Arc::default());
        stop.begin(std::time::Duration::from_secs(60));
        stop
    }

    proptest! {
        /// Against Lua's own `string.find`, whose stack and time so short ones do not exceed.
        #[test]
        fn patterns_match_as_lua_s_own(
            text in "[ab(). 1]{0,12}",
            pattern in r"(a|b|\.|%a|\[\^a\]|\[a\-b1\]|%w|%d|%s|%W|%D|%b\(\)|%f\[%w\]|\(|\)|\(\)|%1|%|\^|[-*+?]|\(a*\)|\(b-\)|\(%w+\)|\$|\[){0,7}",
            from in 0..4_usize,
        ) {
            let lua = Lua::new();
            let find: mlua::Function = lua.globals().get::<mlua::Table>("string").unwrap().get("find").unwrap();
            let from = from.min(text.len());
            let theirs = find.call::<mlua::MultiValue>((text.as_str(), pattern.as_str(), from + 1));
            // Without anything special it is looked for as it is.
            prop_assume!(!is_plain(pattern.as_bytes()));
            match super::find(text.as_bytes(), pattern.as_bytes(), from, true, &stop()) {
                Err(problem) => {
                    let theirs = theirs.expect_err(&problem).to_string();
                    prop_assert!(theirs.contains(&problem), "{problem} | {theirs}");
                }
                Ok(found) => {
                    let theirs: Vec<Value> = theirs.expect("ours is no error").into_iter().collect();
                    let ours = match found {
                        None => vec![Value::Nil],
                        Some(found) => {
                            let place = [found.place.start as i64 + 1, found.place.end as i64];
                            let captures = found.captures.iter().map(|capture| match *capture {
                                Capture::Position(at) => Value::Integer(at as i64 + 1),
                                Capture::Text(from, to) => Value::String(lua.create_string(&text[from..to]).unwrap()),
                                Capture::Open(_) => unreachable!("it is an error"),
                            });
                            place.map(Value::Integer).into_iter().chain(captures).collect()
                        }
                    };
                    prop_assert_eq!(theirs, ours);
                }
            }
        }
    }

    /// Lua's own code recursed once for each of them, until the stack of the thread was used up.
    #[test]
    fn a_pattern_of_very_many_repetitions_is_refused() {
        let (text, pattern) = ("x".repeat(1000), "x?".repeat(100_000));
        let problem = find(text.as_bytes(), pattern.as_bytes(), 0, true, &stop()).unwrap_err();
        assert_eq!(problem, "pattern too complex");
    }

    #[test]
    fn a_state_is_made_within_its_memory() {
        assert!(Machine::new(Arc::default()).is_ok());
    }
}
