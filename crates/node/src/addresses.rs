//! Checks the settings that say where something is: addresses, URLs and the data folder.
//!
//! What it deliberately does not do: resolve a name or open a socket. Starting does that.

use crate::config::{Config, ConfigError};
use std::net::SocketAddr;
use std::path::Path;

/// Checks all of them.
///
/// # Errors
/// The first that cannot work.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    if config.data_dir.as_os_str().is_empty() {
        return fail("data_dir", "is empty; name the folder for the node's data");
    }
    apart(config)?;
    safe(config)?;
    paths(config)?;
    if !config.advertise_peer.is_empty() {
        host_and_port("advertise_peer", &config.advertise_peer)?;
    }
    for address in config.cluster.values() {
        host_and_port("cluster", address)?;
    }
    for address in &config.join {
        host_and_port("join", address)?;
    }
    for url in &config.advertise_client {
        http_url("advertise_client", url)?;
    }
    for source in &config.table.sources {
        if source != quoin_library::ANYWHERE && !source.starts_with('/') && !source.contains("://") {
            return fail("table.sources", format!("has {source:?}; it must be an absolute path, a URL or *"));
        }
    }
    match config.table.s3_endpoint.as_str() {
        "" => Ok(()),
        url => http_url("table.s3_endpoint", url),
    }
}

fn fail(setting: &'static str, problem: impl Into<String>) -> Result<(), ConfigError> {
    Err(ConfigError { setting, problem: problem.into() })
}

/// No two listeners have one address. Of port 0 each gets a port of its own.
fn apart(config: &Config) -> Result<(), ConfigError> {
    let listeners: [(&str, SocketAddr); 4] = [
        ("listen_client", config.listen_client),
        ("listen_peer", config.listen_peer),
        ("listen_http", config.listen_http),
        ("listen_resp", config.listen_resp),
    ];
    for (at, (setting, address)) in listeners.iter().enumerate() {
        if let Some((other, _)) =
            listeners[..at].iter().find(|(_, taken)| taken == address && taken.port() != 0)
        {
            return fail(setting, format!("is {address}, as is {other}; give each a port of its own"));
        }
    }
    Ok(())
}

/// What precedes a socket's path.
const UNIX: &str = "unix://";
/// The longest path of a socket, less what is added while it is made.
const UNIX_BYTES_MAX: usize = 106;

/// The path in a setting of the form unix:///PATH; `None` if it is empty.
pub(crate) fn unix_path(text: &str) -> Option<&Path> {
    let path = text.strip_prefix(UNIX).unwrap_or(text);
    (!path.is_empty()).then(|| Path::new(path))
}

/// Sockets have paths of their own, that the system takes.
fn paths(config: &Config) -> Result<(), ConfigError> {
    let sockets = [
        ("listen_client_unix", &config.listen_client_unix),
        ("listen_http_unix", &config.listen_http_unix),
        ("listen_resp_unix", &config.listen_resp_unix),
    ];
    let sockets = sockets.map(|(setting, text)| (setting, unix_path(text)));
    for (at, (setting, path)) in sockets.iter().enumerate() {
        let Some(path) = path else { continue };
        if !path.is_absolute() || path.as_os_str().len() > UNIX_BYTES_MAX {
            let text =
                format!("is {}; it must be unix:///PATH, of at most {UNIX_BYTES_MAX} bytes", path.display());
            return fail(setting, text);
        }
        if let Some((other, _)) = sockets[..at].iter().find(|(_, taken)| *taken == Some(*path)) {
            return fail(
                setting,
                format!("is {}, as is {other}; give each a path of its own", path.display()),
            );
        }
    }
    if config.unix_mode().is_none() {
        let text =
            format!("is {:?}; it must be octal digits up to 0777, such as 0660", config.listen_unix_mode);
        return fail("listen_unix_mode", text);
    }
    Ok(())
}

/// Whether clients reach the node from its own machine alone.
pub(crate) fn is_local(config: &Config) -> bool {
    let clients = [config.listen_client, config.listen_http, config.listen_resp];
    clients.iter().all(|address| address.ip().to_canonical().is_loopback())
}

/// Whoever reaches a port may do everything, so beyond this machine it takes TLS, or a word that this is meant.
fn safe(config: &Config) -> Result<(), ConfigError> {
    let clients = config.tls.is_on();
    let listeners = [
        ("listen_client", config.listen_client, clients),
        ("listen_peer", config.listen_peer, config.tls.is_on_for_peers()),
        ("listen_http", config.listen_http, clients),
        ("listen_resp", config.listen_resp, clients),
    ];
    for (setting, address, has_tls) in listeners {
        if !config.insecure && !has_tls && !address.ip().to_canonical().is_loopback() {
            return fail(
                setting,
                format!(
                    "is {address}, which others reach, and there is no TLS: make certificates with quoin cert init and name \
                     them with --tls-cert-file, --tls-key-file and --tls-trusted-ca-file, or say --insecure if everybody \
                     who reaches the port may read and change everything"
                ),
            );
        }
    }
    Ok(())
}

fn host_and_port(setting: &'static str, address: &str) -> Result<(), ConfigError> {
    let good = address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(['/', ' ']) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if good {
        Ok(())
    } else {
        fail(setting, format!("has {address:?}; it must be HOST:PORT, with a port from 1 to 65535"))
    }
}

fn http_url(setting: &'static str, url: &str) -> Result<(), ConfigError> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    if rest.is_some_and(|rest| !rest.is_empty()) {
        return Ok(());
    }
    fail(setting, format!("has {url:?}; it must be a URL that begins with http:// or https://"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::TlsConfig;

    #[test]
    fn sockets_have_paths_of_their_own() {
        let refused = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        let relative = refused(|config| config.listen_http_unix = "unix://q.sock".into());
        assert!(relative.starts_with("listen_http_unix: is q.sock; it must be unix:///PATH"), "{relative}");
        let same = refused(|config| {
            config.listen_client_unix = "unix:///q.sock".into();
            config.listen_resp_unix = "/q.sock".into();
        });
        assert_eq!(
            same,
            "listen_resp_unix: is /q.sock, as is listen_client_unix; give each a path of its own"
        );
        assert!(refused(|config| config.listen_unix_mode = "rw".into()).contains("octal digits"));
        assert!(refused(|config| config.listen_unix_mode = "1777".into()).contains("octal digits"));
    }

    #[test]
    fn beyond_this_machine_it_takes_tls_or_a_word() {
        let open = || Config { listen_resp: ([0, 0, 0, 0], 6379).into(), ..Config::default() };
        let error = open().check().unwrap_err().to_string();
        assert!(error.starts_with("listen_resp: is 0.0.0.0:6379") && error.contains("--insecure"), "{error}");
        assert_eq!(Config { insecure: true, ..open() }.check(), Ok(()));
        let tls = TlsConfig {
            cert_file: "c".into(),
            key_file: "k".into(),
            trusted_ca_file: "a".into(),
            ..TlsConfig::default()
        };
        assert_eq!(Config { tls: tls.clone(), ..open() }.check(), Ok(()));
        let peers = || Config { listen_peer: "[::]:2380".parse().unwrap(), ..Config::default() };
        assert!(peers().check().unwrap_err().to_string().starts_with("listen_peer: is [::]:2380"));
        assert_eq!(Config { tls, ..peers() }.check(), Ok(()));
    }

    #[test]
    fn a_place_that_cannot_be_is_refused_with_its_setting() {
        let refused = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        for (change, setting) in [
            ((|config| config.data_dir = "".into()) as fn(&mut Config), "data_dir: is empty"),
            (
                |config| config.listen_http = config.listen_client,
                "listen_http: is 127.0.0.1:2379, as is listen_client",
            ),
            (
                |config| config.advertise_peer = "host".into(),
                "advertise_peer: has \"host\"; it must be HOST:PORT",
            ),
            (|config| config.advertise_peer = "host:0".into(), "advertise_peer: has \"host:0\""),
            (|config| config.join = vec!["http://host:1/".into()], "join: has"),
            (|config| config.advertise_client = vec!["host:1".into()], "advertise_client: has"),
            (|config| config.table.sources = vec!["tables".into()], "table.sources: has \"tables\""),
            (|config| config.table.s3_endpoint = "minio".into(), "table.s3_endpoint: has"),
        ] {
            let error = refused(change);
            assert!(error.starts_with(setting), "{error}");
        }
        let named = |config: &mut Config| {
            config.cluster = [("quoin".into(), "127.0.0.1:2380".into()), ("b".into(), "b".into())].into();
        };
        assert!(refused(named).starts_with("cluster: has \"b\""));
        let config = Config {
            advertise_client: vec!["https://[::1]:1".into()],
            join: vec!["[::1]:2380".into(), "host.example:1".into()],
            ..Config::default()
        };
        assert_eq!(config.check(), Ok(()));
    }
}
