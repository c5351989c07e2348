//! From where tables may be read. Any client can name a location, and the node reads it with its own rights and from its own
//! place in the network: what it may read is the operator's to say.
//!
//! **Invariant: Allowed.** No location, and no file of a folder, is opened before it was found below one of `table.sources`, links
//! followed. With `*` among them, every location is, but for addresses that only this machine's neighbours have (link-local ones,
//! where clouds serve their machines' secrets).
//!
//! Deliberately absent: where a server redirects to, and a name that is resolved to another address later. Name servers that are trusted.

use super::source::SourceError;
use quoin_table::manifest::MANIFEST;
use std::io;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::path::Path;

/// Everything may be read.
pub const ANYWHERE: &str = "*";
/// Names under which clouds serve their machines' secrets.
const METADATA_NAMES: &[&str] =
    &["metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"];
/// The same by an address that is not link-local.
const METADATA_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Checks a location. Blocks while a name is resolved.
///
/// # Errors
/// It may not be read.
pub(crate) fn location(location: &str, sources: &[String]) -> Result<(), SourceError> {
    let refuse = |problem: String| SourceError::Location { location: location.into(), problem };
    let folder = match location.split_once("://") {
        None => Some(location),
        Some(("file", folder)) => Some(folder),
        Some(_) => None,
    };
    if let Some(folder) = folder {
        // A folder that is not there is told so by whoever opens it, unless it is nobody's business.
        // A manifest that is not there is told so too; one that is a link must not lead out.
        let folder = Path::new(folder);
        let manifest = allows_file(&folder.join(MANIFEST), sources).unwrap_or(true);
        return match allows_file(folder, sources) {
            Ok(true) if manifest => Ok(()),
            _ => Err(refuse(unlisted(sources))),
        };
    }
    if !is_plain(location) {
        return Err(refuse("is no plain URL: it has a backslash, a space, or another character that servers read as something else".into()));
    }
    if sources.iter().any(|source| is_below(location, source)) {
        return Ok(());
    }
    if !sources.iter().any(|source| source == ANYWHERE) {
        return Err(refuse(unlisted(sources)));
    }
    match authority(location) {
        Some(authority) if is_neighbour(authority) => Err(refuse(
            "is at a link-local address, where machines keep secrets: name it in table.sources if it is meant".into(),
        )),
        _ => Ok(()),
    }
}

/// Whether a file or folder, links followed, is below one of `sources`.
///
/// # Errors
/// It is not there.
pub(crate) fn allows_file(file: &Path, sources: &[String]) -> io::Result<bool> {
    if sources.iter().any(|source| source == ANYWHERE) {
        return Ok(true);
    }
    let roots = sources.iter().map(|source| source.strip_prefix("file://").unwrap_or(source));
    let mut roots = roots
        .filter(|root| Path::new(root).is_absolute())
        .filter_map(|root| Path::new(root).canonicalize().ok());
    let file = file.canonicalize()?;
    Ok(roots.any(|root| file.starts_with(root)))
}

fn unlisted(sources: &[String]) -> String {
    let listed = if sources.is_empty() { "nothing".to_owned() } else { sources.join(", ") };
    format!("may not be read by this node: table.sources allows {listed}; add the folder or the URL above it")
}

/// Whether whoever asks for the URL asks for what stands there: parsers take a backslash for a slash, leave out tabs, and
/// decode hosts.
fn is_plain(url: &str) -> bool {
    url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
        && authority(url).is_none_or(|authority| !authority.contains('%'))
}

/// Whether a URL is that of `root`, or below it.
fn is_below(url: &str, root: &str) -> bool {
    let (url, root) = (url.trim_end_matches('/'), root.trim_end_matches('/'));
    let plain = !url.contains('%') && !url.split('/').any(|part| part == ".." || part == ".");
    let rest = url.strip_prefix(root);
    root.contains("://") && plain && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The host and port of a URL.
fn authority(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    matches!(scheme, "http" | "https").then(|| rest.split('/').next().unwrap_or_default())
}

/// Whether only neighbours of this machine have the address.
fn is_neighbour(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    if METADATA_NAMES.iter().any(|name| host.eq_ignore_ascii_case(name)) {
        return true;
    }
    // A name that cannot be resolved is told so by whoever connects.
    let resolved = (host, 80).to_socket_addrs().into_iter().flatten();
    resolved.map(|address| address.ip().to_canonical()).any(|address| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address == METADATA_IPV6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(place: &str, sources: &[&str]) -> Option<String> {
        let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
        location(place, &sources).err().map(|error| error.to_string())
    }

    /// Any client could publish any file that the node could read.
    #[test]
    fn only_what_is_below_a_root_is_read_links_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (root, inside, outside) = (path("root"), path("root/table"), path("outside"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, path("root/link")).unwrap();
        for allowed in [&root, &inside, &format!("file://{inside}")] {
            assert_eq!(refused(allowed, &[&root]), None);
        }
        for other in
            [&outside, &path("root/link"), &path("root/../outside"), &path("root/none"), &path("roots")]
        {
            let error = refused(other, &[&root]).unwrap_or_else(|| panic!("{other} was allowed"));
            assert!(error.contains("table.sources allows"), "{error}");
        }
        std::os::unix::fs::symlink("/etc/hostname", Path::new(&inside).join(MANIFEST)).unwrap();
        assert!(refused(&inside, &[&root]).is_some(), "its manifest is elsewhere");
        assert!(refused(&inside, &[]).unwrap().contains("allows nothing"));
        assert_eq!(refused(&outside, &[ANYWHERE]), None);
    }

    #[test]
    fn urls_are_allowed_by_what_they_begin_with() {
        let sources = ["https://host/a", "s3://bucket/tables/", "http://127.0.0.1:9000"];
        for allowed in
            ["https://host/a", "https://host/a/b/", "s3://bucket/tables/x", "http://127.0.0.1:9000/x"]
        {
            assert_eq!(refused(allowed, &sources), None, "{allowed}");
        }
        for other in [
            "https://host/ab",
            "https://host.evil/a",
            "http://host/a",
            "https://host/a/../b",
            "https://host/a/%2e%2e/b",
            "https://host/a/..\\b",
            "https://host/a/.\t./b",
            "s3://bucket/tablesx",
            "http://127.0.0.1:90001/x",
            "/etc",
        ] {
            assert!(refused(other, &sources).is_some(), "{other}");
        }
    }

    /// A cloud's machines get their credentials there, without a password.
    #[test]
    fn addresses_of_neighbours_must_be_named() {
        for secret in [
            "http://169.254.169.254/latest/meta-data",
            "http://[fe80::1]:80/x",
            "http://[fd00:ec2::254]/x",
            "http://[::ffff:169.254.169.254]/x",
            "http://2852039166/x",
            "http://metadata.google.internal/x",
        ] {
            let error = refused(secret, &[ANYWHERE]).unwrap_or_else(|| panic!("{secret} was allowed"));
            assert!(error.contains("link-local"), "{error}");
            assert_eq!(refused(secret, &[secret]), None);
        }
        for hidden in [
            "http://169.254.169.254\\x",
            "http://169.254.169.25\t4/x",
            "http://%31%36%39.254.169.254/x",
            "http://１69.254.169.254/x",
            "http://169.254.169.254 /x",
        ] {
            let error = refused(hidden, &[ANYWHERE]).unwrap_or_else(|| panic!("{hidden} was allowed"));
            assert!(error.contains("no plain URL"), "{error}");
        }
        assert_eq!(refused("http://127.0.0.1:9000/x", &[ANYWHERE]), None);
    }
}
