//! Golden scripts: `testscripts/*.txt` hold requests, each after `> `, and below each what the client is
//! answered.
//!
//! Everything that a client meets is what a node runs: sockets, this adapter, the engine with its log and
//! store, lookup tables. Only the cluster is small: each script has one replica, in a temporary folder. Each
//! script runs twice, on two replicas: its clients speak RESP2, then RESP3. What they are answered
//! differently is shown for both, after `2: ` and `3: `.
//!
//! `UPDATE_GOLDEN=1 cargo test -p quoin-api golden_scripts` rewrites the answers; read the diff before you
//! keep it.
//!
//! Every command of the table must be used by a script. A line is a request (see `words.rs`, `wire.rs`), from
//! the client `a`, or after `b: ` from another one, which connects when it is first named; or one of these:
//!
//! ```text
//! pipeline REQUEST | REQUEST     send several requests at once
//! raw "BYTES"                    send bytes as they are
//! until REPLY REQUEST            repeat a request until it has this reply: for what the replica does itself
//! within LOW HIGH REQUEST        show only that the answer is an integer in this range
//! message                        wait for a message, or for another reply to the request before
//! end                            wait until the server closes the connection
//! publish TABLE KEY=VALUE ...    publish a version of a lookup table
//! activate TABLE VERSION         switch the table to it, once it is ready
//! space short | enough           raise or disarm the alarm NOSPACE
//! clock MS                       move the wall clock so far ahead of this machine's
//! stop                           stop the replica
//! ```

mod replica;
mod wire;
mod words;

use super::commands::{COMMANDS, Command};
use quoin_core::golden;
use quoin_testkit::{PATIENCE, wait_blocking};
use replica::Replica;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use wire::Wire;
use words::words;

/// One run of a script.
struct World {
    replica: Replica,
    /// Requests that a client begins with, to speak a version of the protocol.
    greeting: &'static str,
    clients: BTreeMap<String, BufReader<TcpStream>>,
    /// Names of the commands that were asked for.
    used: BTreeSet<&'static str>,
}

impl World {
    fn new(greeting: &'static str) -> Self {
        Self { replica: Replica::start(), greeting, clients: BTreeMap::new(), used: BTreeSet::new() }
    }

    /// Runs a line; returns its answers.
    fn run(&mut self, line: &str) -> Vec<Wire> {
        let (client, line) = match line.split_once(": ") {
            Some((client, line)) if client.len() == 1 => (client, line),
            _ => ("a", line),
        };
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let done = || vec![Wire::Line("+done".into())];
        match name {
            "pipeline" => {
                let requests: Vec<&str> = rest.split(" | ").collect();
                self.ask(client, &requests)
            }
            "raw" => {
                self.send(client, &words(rest).concat());
                vec![self.read(client)]
            }
            "until" => {
                let (wanted, request) = rest.split_once(' ').expect("a reply and a request");
                let reply = wait_blocking(line, || {
                    let mut replies = self.ask(client, &[request]);
                    let shown = replies[0].show().concat();
                    if shown == wanted { Ok(replies.remove(0)) } else { Err(shown) }
                });
                vec![reply.unwrap()]
            }
            "within" => {
                let mut words = rest.splitn(3, ' ');
                let mut word = || words.next().expect("two numbers and a request");
                let (low, high, request) = (word(), word(), word());
                let reply = self.ask(client, &[request])[0].show().concat();
                let number: i64 = reply[1..].parse().unwrap_or_else(|_| panic!("{reply} is not an integer"));
                assert!((low.parse().unwrap()..=high.parse().unwrap()).contains(&number), "{line}: {reply}");
                vec![Wire::Line(format!(":{low}..={high}"))]
            }
            "message" => vec![self.read(client)],
            "end" => {
                let ended = wire::read(self.client(client)).unwrap();
                assert!(ended.is_none(), "the connection is open: {ended:?}");
                self.clients.remove(client);
                done()
            }
            "publish" => {
                let version = self.replica.publish(rest);
                vec![Wire::Line(format!("+version {version}"))]
            }
            "activate" => {
                let (table, version) = rest.split_once(' ').expect("a table and a version");
                self.replica.activate(table, version.parse().unwrap());
                done()
            }
            "space" => {
                self.replica.space(rest == "short");
                done()
            }
            "clock" => {
                self.replica.clock(rest.parse().unwrap());
                done()
            }
            "stop" => {
                self.replica.stop();
                done()
            }
            _ => self.ask(client, &[line]),
        }
    }

    /// Sends requests at once; returns a reply to each.
    fn ask(&mut self, client: &str, requests: &[&str]) -> Vec<Wire> {
        let mut bytes = Vec::new();
        for request in requests {
            let words = words(request);
            self.used.extend(Command::find(&words[0]).map(|command| command.name));
            write!(bytes, "*{}\r\n", words.len()).unwrap();
            for word in words {
                write!(bytes, "${}\r\n", word.len()).unwrap();
                bytes.extend_from_slice(&word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.send(client, &bytes);
        requests.iter().map(|_| self.read(client)).collect()
    }

    fn send(&mut self, client: &str, bytes: &[u8]) {
        self.client(client).get_mut().write_all(bytes).unwrap();
    }

    fn read(&mut self, client: &str) -> Wire {
        let stream = self.client(client);
        let address = stream.get_ref().local_addr().unwrap().to_string();
        let mut reply = wire::read(stream).unwrap().unwrap_or_else(|| Wire::Line("closed".into()));
        reply.map_text(&|text| masked(text, &address));
        reply.hide("version");
        reply
    }

    fn client(&mut self, name: &str) -> &mut BufReader<TcpStream> {
        self.clients.entry(name.into()).or_insert_with(|| {
            let mut stream = TcpStream::connect(self.replica.address()).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(stream, "{}\r\n", self.greeting).unwrap();
            let mut stream = BufReader::new(stream);
            wire::read(&mut stream).unwrap().expect("a greeting");
            stream
        })
    }
}

/// A text without what differs between runs and between Quoin's versions.
fn masked(text: &str, address: &str) -> String {
    const VARYING: &[&str] = &[
        "quoin_version",
        "process_id",
        "quoin_applied_index",
        "quoin_revision",
        "quoin_lag_ms",
        "quoin_store_bytes",
        "quoin_log_bytes",
    ];
    let line = |line: &str| match line.split_once(':') {
        Some((name, _)) if VARYING.contains(&name) => format!("{name}:..."),
        _ => line.to_owned(),
    };
    // Of CLIENT LIST: other clients' addresses, and how long they have been here.
    let word = |word: &str| match word.split_once('=') {
        Some((name @ ("addr" | "age"), _)) if word != "addr=ADDRESS" => format!("{name}=..."),
        _ => word.to_owned(),
    };
    let lines = text.split('\n').map(line).collect::<Vec<_>>().join("\n");
    lines.replace(address, "ADDRESS").split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Runs a script on two replicas, with clients of RESP2 and of RESP3; returns it with its answers.
fn replay(script: &str, used: &mut BTreeSet<&'static str>) -> String {
    let mut worlds = ["PING", "HELLO 3"].map(World::new);
    let mut out = String::new();
    for line in golden::kept_lines(script) {
        out += &format!("{line}\n");
        let Some(line) = line.strip_prefix("> ") else { continue };
        // Shown only where the test fails: by the last line a hang or a panic is found.
        println!("{line}");
        let [second, third] = worlds.each_mut().map(|world| world.run(line));
        assert_eq!(second.len(), third.len());
        for (second, third) in second.iter().zip(&third) {
            let (second, third) = (second.show().join("\n"), third.show().join("\n"));
            if second == third {
                out += &format!("{second}\n");
            } else {
                out += &format!("2: {second}\n3: {third}\n");
            }
        }
    }
    for world in worlds {
        used.extend(&world.used);
        world.replica.end();
    }
    out
}

#[test]
fn golden_scripts_answer_as_recorded_and_use_every_command() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/resp/testscripts");
    let mut used = BTreeSet::new();
    golden::check(&folder, |script| replay(script, &mut used));
    let unused: Vec<_> =
        COMMANDS.iter().map(|command| command.name).filter(|name| !used.contains(name)).collect();
    assert!(unused.is_empty(), "no script uses {unused:?}");
}
