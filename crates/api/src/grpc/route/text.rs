//! Addresses, from text and to text.

use quoin_core::route::Mac;
use std::io::Write;
use std::net::IpAddr;

/// Reads `aa:bb:cc:dd:ee:ff`, either case, also with dashes.
pub(super) fn parse_mac(text: &str) -> Option<Mac> {
    let bytes = text.as_bytes();
    if bytes.len() != 17 {
        return None;
    }
    let mut mac = Mac::default();
    for (place, octet) in mac.iter_mut().enumerate() {
        let at = place * 3;
        *octet = digit(bytes[at])? << 4 | digit(bytes[at + 1])?;
        if place < 5 && !matches!(bytes[at + 2], b':' | b'-') {
            return None;
        }
    }
    Some(mac)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Appends `aa:bb:cc:dd:ee:ff`.
pub(super) fn write_mac(out: &mut Vec<u8>, mac: &Mac) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (place, octet) in mac.iter().enumerate() {
        if place > 0 {
            out.push(b':');
        }
        out.push(DIGITS[usize::from(octet >> 4)]);
        out.push(DIGITS[usize::from(octet & 15)]);
    }
}

/// Appends an address as [`std::fmt::Display`] formats it, but faster for IPv4.
pub(super) fn write_ip(out: &mut Vec<u8>, ip: &IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            for (place, octet) in ip.octets().into_iter().enumerate() {
                if place > 0 {
                    out.push(b'.');
                }
                if octet >= 100 {
                    out.push(b'0' + octet / 100);
                }
                if octet >= 10 {
                    out.push(b'0' + octet / 10 % 10);
                }
                out.push(b'0' + octet % 10);
            }
        }
        IpAddr::V6(ip) => write!(out, "{ip}").expect("a Vec takes everything"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_are_read() {
        for text in ["0.0.0.0", "9.10.99.100", "255.1.200.19", "fd00::1", "::", "2001:db8:1::ffff"] {
            let mut out = Vec::new();
            write_ip(&mut out, &text.parse().unwrap());
            assert_eq!(out, text.as_bytes());
        }
        let mut out = Vec::new();
        write_mac(&mut out, &parse_mac("0A-1b:2c:3D:4e:ff").unwrap());
        assert_eq!(out, b"0a:1b:2c:3d:4e:ff");
    }

    #[test]
    fn what_is_no_hardware_address_is_refused() {
        for text in [
            "",
            "aa:bb:cc:dd:ee",
            "aa:bb:cc:dd:ee:f",
            "aa:bb:cc:dd:ee:fg",
            "aa.bb.cc.dd.ee.ff",
            "aa:bb:cc:dd:ee:ff0",
        ] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
