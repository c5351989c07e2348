//! `quoin cert`: certificates for people who have no authority of their own.

use crate::output;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use quoin_tls::{Folder, Found, Subject, found};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A day.
const DAY: Duration = Duration::from_secs(86_400);

/// Commands on certificates.
#[derive(Subcommand)]
pub(crate) enum Cert {
    /// Make an authority, and certificates for nodes and clients that have none in the folder yet
    Init(Init),
    /// Sign the certificates of the folder anew, for the keys that they have; running nodes notice
    Renew {
        /// The folder
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Days that they count
        #[arg(long, default_value_t = 365, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show whom certificates name, and until when they count
    Show {
        /// Files, or folders with .crt files
        #[arg(required = true, value_name = "FILE|DIR")]
        places: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What to make.
#[derive(Args)]
pub(crate) struct Init {
    /// The folder; an authority that is there is used
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Nodes by name, and where each is reached, several hosts with '+' between them; localhost is added
    #[arg(long, value_delimiter = ',', value_name = "NAME=HOST[+HOST],...")]
    nodes: Vec<String>,
    /// Clients by name
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", default_value = "client")]
    clients: Vec<String>,
    /// Days that nodes' and clients' certificates count; the authority counts ten years
    #[arg(long, default_value_t = 365, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Runs a command on certificates.
pub(crate) fn run(cert: Cert) -> Result<()> {
    match cert {
        Cert::Init(init) => make(&init),
        Cert::Renew { dir, days, json } => show(&Folder::at(dir).renew(days)?, json),
        Cert::Show { places, json } => {
            let mut all = Vec::new();
            for place in places {
                if place.is_dir() {
                    all.extend(Folder::at(place).list()?);
                } else {
                    all.push(found(place)?);
                }
            }
            show(&all, json)
        }
    }
}

fn make(init: &Init) -> Result<()> {
    let folder = Folder::at(&init.dir);
    let nodes: Result<Vec<Subject>> = init.nodes.iter().map(|node| self::node(node)).collect();
    let clients = init.clients.iter().map(|name| Subject::Client { name: name.clone() });
    let made = folder.make(&nodes?.into_iter().chain(clients).collect::<Vec<_>>(), init.days)?;
    let mut out = std::io::stdout();
    for place in &made {
        writeln!(out, "made {} and its key", place.certificate.display())?;
    }
    if made.is_empty() {
        writeln!(
            out,
            "nothing to make: quoin cert renew --dir {} signs what is there anew",
            init.dir.display()
        )?;
    }
    if let Some(Subject::Node { name, .. }) = init.nodes.first().map(|node| self::node(node)).transpose()? {
        let (place, authority) = (folder.node(&name), folder.authority());
        writeln!(
            out,
            "\nKeep {}/ca.key elsewhere: whoever has it can be anyone. A node, say {name}, is started with\n  \
             quoin serve --name {name} --tls-cert-file {} --tls-key-file {} --tls-trusted-ca-file {} ...",
            init.dir.display(),
            place.certificate.display(),
            place.key.display(),
            authority.display()
        )?;
        writeln!(
            out,
            "and asked with\n  quoin kv get KEY --endpoints https://HOST:2379 --cacert {}",
            authority.display()
        )?;
    }
    Ok(())
}

/// `NAME=HOST+HOST`.
fn node(text: &str) -> Result<Subject> {
    let (name, hosts) = text.split_once('=').with_context(|| format!("{text:?} is not NAME=HOST"))?;
    let mut hosts: Vec<String> = hosts.split('+').map(str::to_owned).collect();
    for host in &hosts {
        let good = !host.is_empty() && !host.contains(['/', ' ', '=']);
        // An address of IPv6 has several colons, a port behind a host one.
        ensure!(
            good && host.matches(':').count() != 1,
            "{text:?} must name hosts, without ports and without http://"
        );
    }
    for local in ["localhost", "127.0.0.1"] {
        if !hosts.iter().any(|host| host == local) {
            hosts.push(local.into());
        }
    }
    Ok(Subject::Node { name: name.into(), hosts })
}

fn show(all: &[Found], json: bool) -> Result<()> {
    let now = SystemTime::now();
    let left = |it: &Found| it.certificate.not_after.duration_since(now).ok();
    if json {
        let seconds = |moment: SystemTime| moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let rows: Vec<_> = all
            .iter()
            .map(|it| {
                let certificate = &it.certificate;
                json!({
                    "file": it.file, "node": certificate.node(), "client": certificate.client(),
                    "common_name": certificate.common_name, "issuer": certificate.issuer,
                    "hosts": certificate.hosts, "uris": certificate.uris,
                    "not_before": seconds(certificate.not_before), "not_after": seconds(certificate.not_after),
                    "expired": left(it).is_none(),
                })
            })
            .collect();
        return output::json(&json!({ "certificates": rows }));
    }
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|it| {
            let days = left(it).map(|left| format!("{} days", left.as_secs() / DAY.as_secs()));
            vec![
                it.file.display().to_string(),
                it.certificate.described(),
                it.certificate.issuer.clone(),
                days.unwrap_or_else(|| "EXPIRED".into()),
            ]
        })
        .collect();
    output::table(&["file", "names", "signed by", "left"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_with_its_hosts() {
        let hosts = |hosts: &[&str]| hosts.iter().map(ToString::to_string).collect();
        let subject =
            Subject::Node { name: "a".into(), hosts: hosts(&["10.0.0.1", "a.x", "localhost", "127.0.0.1"]) };
        assert_eq!(node("a=10.0.0.1+a.x").unwrap(), subject);
        assert!(node("a=::1").is_ok());
        for wrong in ["a", "a=", "a=h:2380", "a=http://h", "a=h+"] {
            assert!(node(wrong).is_err(), "{wrong}");
        }
    }
}
