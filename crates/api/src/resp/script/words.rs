//! The words of a script's line.
//!
//! ```text
//! SET key "a value\r\n\x00"     words, in quotes where they have blanks or escapes
//! SET key {ab*3}                something several times: ababab
//! TABLE.LOOKUP t u64(1,2)       numbers of eight bytes, little-endian
//! ```

/// The words of `line`.
///
/// # Panics
/// A quote is not closed, or an escape is unknown.
pub(super) fn words(line: &str) -> Vec<Vec<u8>> {
    let (mut words, mut rest) = (Vec::new(), line.trim_start());
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => unquoted(quoted),
            None => {
                let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
                (expanded(word), after)
            }
        };
        words.push(word);
        rest = after.trim_start();
    }
    words
}

/// The bytes up to the closing quote, and what follows it.
fn unquoted(text: &str) -> (Vec<u8>, &str) {
    let (mut word, mut rest) = (Vec::new(), text.chars());
    loop {
        match rest.next().expect("the quote is closed") {
            '"' => return (word, rest.as_str()),
            '\\' => word.push(match rest.next() {
                Some('r') => b'\r',
                Some('n') => b'\n',
                Some('"') => b'"',
                Some('\\') => b'\\',
                Some('x') => {
                    let (digits, after) = rest.as_str().split_at(2);
                    rest = after.chars();
                    u8::from_str_radix(digits, 16).expect("two hexadecimal digits")
                }
                other => panic!("unknown escape {other:?}"),
            }),
            other => word.extend(other.to_string().into_bytes()),
        }
    }
}

fn expanded(word: &str) -> Vec<u8> {
    if let Some(numbers) = word.strip_prefix("u64(").and_then(|word| word.strip_suffix(')')) {
        let number = |number: &str| number.parse::<u64>().expect("a number").to_le_bytes();
        return numbers.split(',').flat_map(number).collect();
    }
    let repeated = word.strip_prefix('{').and_then(|word| word.strip_suffix('}')?.split_once('*'));
    match repeated {
        Some((text, times)) => text.repeat(times.parse().expect("a number")).into_bytes(),
        None => word.into(),
    }
}
