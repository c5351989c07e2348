//! What users of the crate redis do, on the three replicas of a cluster whose addresses are the arguments.
//! The cluster has the table `compat`: keys 1 to 1000, each with its own number as a value of eight bytes.

use anyhow::{Context, Result, ensure};
use redis::{Client, Commands, Connection, ErrorKind, RedisResult, Value};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    clients: Vec<Client>,
}

impl Cluster {
    fn at(&self, replica: usize) -> Result<Connection> {
        let connection = self.clients[replica].get_connection()?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }
}

fn main() -> Result<()> {
    let addresses: Vec<String> = std::env::args().skip(1).collect();
    ensure!(addresses.len() == 3, "usage: quoin-compat-redis ADDRESS ADDRESS ADDRESS");
    for version in ["", "?protocol=resp3"] {
        let open = |address: &String| Client::open(format!("redis://{address}/{version}"));
        let cluster = Cluster { clients: addresses.iter().map(open).collect::<Result<_, _>>()? };
        strings(&cluster).context("strings")?;
        pipelines(&cluster).context("pipelines")?;
        transactions(&cluster).context("transactions")?;
        tables(&cluster).context("tables")?;
        println!("redis crate: strings, pipelines, transactions, tables ok {version}");
    }
    let open = |address: &String| Client::open(format!("redis://{address}/"));
    let cluster = Cluster { clients: addresses.iter().map(open).collect::<Result<_, _>>()? };
    notices(&cluster).context("notices")?;
    println!("redis crate: notices ok");
    Ok(())
}

fn strings(cluster: &Cluster) -> Result<()> {
    let mut first = cluster.at(0)?;
    () = first.set("rs:a", "1")?;
    for replica in 0..3 {
        let value: String = cluster.at(replica)?.get("rs:a")?;
        ensure!(value == "1", "replica {replica} returned {value:?} after the write was answered");
    }
    () = first.mset(&[("rs:x", "1"), ("rs:y", "2")])?;
    let values: Vec<Option<String>> = first.mget(&["rs:x", "rs:none", "rs:y"])?;
    ensure!(values == [Some("1".into()), None, Some("2".into())], "{values:?}");
    let deleted: i64 = first.del(&["rs:x", "rs:y", "rs:none", "rs:n"])?;
    ensure!(deleted == 2 || deleted == 3, "{deleted} were deleted");
    let number: i64 = first.incr("rs:n", 5)?;
    ensure!(number == 5, "{number}");
    () = first.set_ex("rs:ttl", "v", 100)?;
    let left: i64 = first.ttl("rs:ttl")?;
    ensure!((1..=100).contains(&left), "{left} s are left");
    let binary: Vec<u8> = (0..=255).collect();
    () = first.set("rs:binary", &binary)?;
    let back: Vec<u8> = first.get("rs:binary")?;
    ensure!(back == binary, "{back:?}");
    // An unknown command is refused, and the connection stays open.
    let refused: RedisResult<i64> = first.lpush("rs:list", 1);
    let text = refused.err().context("a list was made")?.to_string();
    ensure!(text.contains("unknown command 'LPUSH'"), "{text}");
    () = redis::cmd("READONLY").query(&mut first)?;
    let value: Option<String> = first.get("rs:a")?;
    ensure!(value.as_deref() == Some("1"), "{value:?}");
    Ok(())
}

fn pipelines(cluster: &Cluster) -> Result<()> {
    let mut connection = cluster.at(1)?;
    let mut pipe = redis::pipe();
    for number in 0..1000 {
        pipe.set(format!("rs:p:{number:04}"), number).ignore();
    }
    for number in 0..1000 {
        pipe.get(format!("rs:p:{number:04}"));
    }
    let values: Vec<i64> = pipe.query(&mut connection)?;
    ensure!(values == (0..1000).collect::<Vec<_>>(), "{} values, not all of them correct", values.len());
    let keys = connection.scan_match::<_, String>("rs:p:*")?.collect::<Result<Vec<_>, _>>()?;
    ensure!(keys.len() == 1000, "SCAN found {} of 1000 keys", keys.len());
    Ok(())
}

fn transactions(cluster: &Cluster) -> Result<()> {
    let mut connection = cluster.at(2)?;
    let (set, value): (bool, i64) =
        redis::pipe().atomic().set("rs:t", 41).incr("rs:t", 1).ignore().get("rs:t").query(&mut connection)?;
    ensure!(set && value == 42, "{set} {value}");
    // Another client writes between WATCH and EXEC, once: the crate retries.
    let mut other = cluster.at(0)?;
    let mut tries = 0;
    let (after,): (i64,) = redis::transaction(&mut connection, &["rs:t"], |connection, pipe| {
        let before: i64 = connection.get("rs:t")?;
        tries += 1;
        if tries == 1 {
            () = other.set("rs:t", 100)?;
            // Reads go on: only EXEC depends on the watched keys.
            let seen: i64 = connection.get("rs:t")?;
            if seen != 100 {
                return Err((ErrorKind::Client, "a read after WATCH is stale").into());
            }
        }
        pipe.set("rs:t", before + 1).ignore().get("rs:t").query(connection)
    })?;
    ensure!(tries == 2 && after == 101, "{tries} tries, {after}");
    Ok(())
}

fn tables(cluster: &Cluster) -> Result<()> {
    for replica in 0..3 {
        let mut connection = cluster.at(replica)?;
        let keys: Vec<u8> = [1_u64, 2000, 1000].into_iter().flat_map(u64::to_le_bytes).collect();
        let mut lookup = redis::cmd("TABLE.LOOKUP");
        lookup.arg("compat").arg(keys);
        for mode in ["READWRITE", "READONLY"] {
            () = redis::cmd(mode).query(&mut connection)?;
            let (version, found, values): (u64, Vec<u8>, Vec<u8>) = lookup.query(&mut connection)?;
            ensure!(version == 1 && found == [0b101], "version {version}, found {found:?}");
            ensure!(values.len() == 24 && values[..8] == *b"00000001" && values[16..] == *b"00001000");
            let texts: Vec<Option<String>> =
                redis::cmd("TABLE.MGET").arg("compat").arg(7).arg(0).query(&mut connection)?;
            ensure!(texts == [Some("00000007".into()), None], "{texts:?}");
        }
        let half: RedisResult<Value> =
            redis::cmd("TABLE.LOOKUP").arg("compat").arg("abc").query(&mut connection);
        let text = half.err().context("three bytes were accepted as keys")?.to_string();
        ensure!(text.contains("not a multiple of 8"), "{text}");
        // A value set at one replica can be read at the next one at once.
        let (key, value) = (5000 + replica, format!("{replica:08}"));
        () = redis::cmd("TABLE.SET").arg("compat").arg(key).arg(&value).query(&mut connection)?;
        let mut next = cluster.at((replica + 1) % 3)?;
        let texts: Vec<String> = redis::cmd("TABLE.MGET").arg("compat").arg(key).query(&mut next)?;
        ensure!(texts == [value], "{texts:?}");
    }
    Ok(())
}

fn notices(cluster: &Cluster) -> Result<()> {
    let mut listening = cluster.at(2)?;
    let mut subscription = listening.as_pubsub();
    subscription.psubscribe("__keyspace@0__:rs:noticed:*")?;
    () = cluster.at(0)?.set("rs:noticed:1", "v")?;
    () = cluster.at(1)?.del("rs:noticed:1")?;
    for wanted in ["set", "del"] {
        let message = subscription.get_message()?;
        let (channel, what): (&str, String) = (message.get_channel_name(), message.get_payload()?);
        ensure!(
            channel == "__keyspace@0__:rs:noticed:1" && what == wanted,
            "{channel} announced {what}, not {wanted}"
        );
    }
    Ok(())
}
