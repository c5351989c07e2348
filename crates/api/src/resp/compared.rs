//! Redis's commands beside the table: what docs/redis.md says of each is made from both, so it cannot say more than there
//! is.
//!
//! `UPDATE_GOLDEN=1 cargo test -p quoin-api compared` writes the page; read the difference before you keep it.

use super::commands::{COMMANDS, Command};
use crate::testing::check_page;
use std::collections::BTreeSet;
use std::fmt::Write;

/// What `COMMAND DOCS` of Redis 7.0 lists, by its groups, without what only Redis's own processes say to each other; and
/// the commands of hashes that came with 7.4 and 8.0.
const REDIS: &[(&str, &str)] = &[
    (
        "string",
        "append decr decrby get getdel getex getrange getset incr incrby incrbyfloat lcs mget mset msetnx \
     psetex set setex setnx setrange strlen substr",
    ),
    (
        "hash",
        "hdel hexists hexpire hexpireat hexpiretime hget hgetall hgetdel hgetex hincrby hincrbyfloat hkeys hlen \
     hmget hmset hpersist hpexpire hpexpireat hpexpiretime hpttl hrandfield hscan hset hsetex hsetnx hstrlen httl hvals",
    ),
    (
        "generic",
        "copy del dump exists expire expireat expiretime keys migrate move object persist pexpire pexpireat \
     pexpiretime pttl randomkey rename renamenx restore scan sort sort_ro touch ttl type unlink wait",
    ),
    ("transactions", "discard exec multi unwatch watch"),
    ("scripting", "eval eval_ro evalsha evalsha_ro fcall fcall_ro function script"),
    (
        "pubsub",
        "psubscribe publish pubsub punsubscribe spublish ssubscribe subscribe sunsubscribe unsubscribe",
    ),
    ("connection", "auth client echo hello ping quit reset select"),
    (
        "server",
        "acl bgrewriteaof bgsave command config dbsize debug failover flushall flushdb info lastsave latency lolwut \
     memory module monitor replicaof role save shutdown slaveof slowlog swapdb time",
    ),
    ("cluster", "asking cluster readonly readwrite"),
    ("bitmap", "bitcount bitfield bitfield_ro bitop bitpos getbit setbit"),
    (
        "geo",
        "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember georadiusbymember_ro geosearch \
     geosearchstore",
    ),
    ("hyperloglog", "pfadd pfcount pfdebug pfmerge pfselftest"),
    (
        "list",
        "blmove blmpop blpop brpop brpoplpush lindex linsert llen lmove lmpop lpop lpos lpush lpushx lrange lrem lset \
     ltrim rpop rpoplpush rpush rpushx",
    ),
    (
        "set",
        "sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember smove spop srandmember \
     srem sscan sunion sunionstore",
    ),
    (
        "sorted-set",
        "bzmpop bzpopmax bzpopmin zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard zinterstore \
     zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex zrangebyscore zrangestore zrank zrem \
     zremrangebylex zremrangebyrank zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion \
     zunionstore",
    ),
    (
        "stream",
        "xack xadd xautoclaim xclaim xdel xgroup xinfo xlen xpending xrange xread xreadgroup xrevrange xsetid xtrim",
    ),
];

/// Commands that answer otherwise than Redis's where clients may notice, and in what.
const DIFFER: &[(&str, &str)] = &[
    ("incrbyfloat hincrbyfloat", "decimal sums, exact"),
    ("hgetall hkeys hvals", "in the order of the fields' names, within `limits.response_bytes_max`"),
    ("hlen", "counts a field that is over until the log has deleted it"),
    ("hrandfield", "among the first thousand fields"),
    ("hscan", "each field once, in order; not in MULTI or scripts"),
    ("scan", "each key once, in order; not in MULTI or scripts"),
    ("keys dbsize", "not in MULTI or scripts"),
    ("randomkey", "near a random place, once there are more than a thousand; not in MULTI or scripts"),
    ("flushdb flushall", "a thousand keys at a time, with those of etcd's API; not in MULTI or scripts"),
    ("copy rename renamenx", "a hash within a transaction is read and written whole"),
    ("object", "ENCODING and REFCOUNT alone"),
    ("memory", "USAGE alone"),
    (
        "multi exec",
        "one transaction of the log: done if nothing that it read has changed, or run again, up to 100 times",
    ),
    ("watch", "of an absent key, whether it exists when EXEC comes"),
    ("eval evalsha eval_ro evalsha_ro", "a transaction; see [scripts](#scripts)"),
    (
        "script",
        "LOAD, EXISTS, FLUSH, KILL; each node knows the scripts that it was given; KILL ends all that run on the node",
    ),
    ("fcall fcall_ro", "a transaction; see [functions](#functions)"),
    ("function", "libraries have bounds, and KILL ends all that run on the node; not in MULTI"),
    ("publish subscribe psubscribe", "through the log: one order on all nodes"),
    ("pubsub", "CHANNELS, NUMSUB, NUMPAT; about the node that is asked"),
    (
        "auth hello",
        "the users of [security.md](security.md#users-and-roles); while authentication is off, `default` with any password",
    ),
    ("acl", "WHOAMI, USERS, LIST, GETUSER, CAT; users are changed by `quoin user` and `quoin role`"),
    (
        "client",
        "ID, GETNAME, SETNAME, SETINFO, INFO, LIST, KILL, REPLY, NO-EVICT, NO-TOUCH; about the node that is asked",
    ),
    ("select", "database 0 alone"),
    ("readonly readwrite", "reads of this connection are local to its replica, or not"),
    ("command", "COUNT, DOCS, INFO"),
    ("config", "GET alone"),
    ("info", "Quoin's sections, with Redis's names where they fit"),
    ("latency", "has nothing to tell: latencies are in the metrics"),
    ("time", "the cluster's time, by which times to live are judged"),
    ("wait", "every write is on a majority before it is answered"),
];

fn words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split_ascii_whitespace()
}

fn is_there(name: &str) -> bool {
    Command::find(name.as_bytes()).is_some()
}

/// The part of the page.
fn rendered() -> String {
    let differ: BTreeSet<&str> = DIFFER.iter().flat_map(|(names, _)| words(names)).collect();
    let mut page = String::from("| Redis's group | same | differs | absent |\n|---|---|---|---|\n");
    for (group, names) in REDIS {
        let cell = |holds: &dyn Fn(&str) -> bool| {
            let names: Vec<_> = words(names).filter(|name| holds(name)).map(str::to_uppercase).collect();
            names.join(" ")
        };
        let same = cell(&|name| is_there(name) && !differ.contains(name));
        let differs = cell(&|name| differ.contains(name));
        let absent = cell(&|name| !is_there(name));
        writeln!(page, "| {group} | {same} | {differs} | {absent} |").unwrap();
    }
    page += "\n| command | what differs |\n|---|---|\n";
    for (names, what) in DIFFER {
        writeln!(page, "| {} | {what} |", names.to_uppercase()).unwrap();
    }
    page
}

#[test]
fn the_page_compares_every_command_with_the_table() {
    let redis: Vec<&str> = REDIS.iter().flat_map(|(_, names)| words(names)).collect();
    let unique: BTreeSet<&str> = redis.iter().copied().collect();
    assert_eq!(redis.len(), unique.len(), "a command stands in two groups");
    let own = COMMANDS.iter().map(|command| command.name).filter(|name| !name.starts_with("table."));
    assert_eq!(
        own.filter(|name| !unique.contains(name)).collect::<Vec<_>>(),
        [""; 0],
        "commands that Redis has not"
    );
    for name in DIFFER.iter().flat_map(|(names, _)| words(names)) {
        assert!(is_there(name) && unique.contains(name), "{name} is absent, so nothing of it differs");
    }
    check_page("docs/redis.md", "commands", &rendered());
}
