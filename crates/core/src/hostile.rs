//! Commands that no client sends in good faith: every operation of every face with keys, names, numbers and
//! lists of extreme sizes, and bytes that are hardly commands.
//!
//! [`check`] applies them to a store and to one in memory, which must agree: so a machine refuses what one of
//! them cannot hold, on both. Each implementation of [`Store`] runs it in its own tests (feature `testing`).
//! **Invariant: Decoded is applied.**

use crate::limits::STORE_KEY_BYTES_MAX;
use crate::store::MemoryStore;
use crate::store::contract::Random;
use crate::{Batch, Command, Face, Index, Machines, Stamp, Store, Term};
use crate::{auth, function, kv, ledger, route, system, table};
use bytes::Bytes;
use kv::txn_operation::Step;
use std::collections::BTreeMap;

/// Applies `entries` entries of hostile commands, named by `seed`, to the empty `store`, and compares its
/// replies and events with those of a store in memory. Calls `applied` after each entry with its index and a
/// random number; there the store may reorganize itself.
///
/// # Panics
/// A machine panics, or the stores differ.
pub fn check(store: &dyn Store, seed: u64, entries: usize, applied: &mut dyn FnMut(Index, u64)) {
    let (mut random, plain) = (Random::new(seed), MemoryStore::new());
    let mut machines = Machines::open(store).expect("the store can be read");
    let mut twins = Machines::open(&plain).expect("a store in memory");
    let mut stamp = 1_000_000;
    for entry in 0..entries {
        // Nothing comes after the end of time: it is left for last.
        let later = if entry + 5 < entries { random.below(2000) } else { random.number() };
        stamp = u64::saturating_add(stamp, later);
        let commands: Vec<Command> = (0..1 + random.below(4)).map(|_| command(&mut random)).collect();
        let payload = Batch::encode(Stamp(stamp), &commands);
        let (index, term) = (machines.progress().index.next(), Term(1 + entry as u64 / 50));
        let outcome = machines.apply(store, index, term, payload.clone()).expect("a sound store");
        let expected = twins.apply(&plain, index, term, payload).expect("a store in memory");
        let text = format!("seed {seed}, entry {entry}");
        assert!(outcome.replies == expected.replies, "{text}: replies differ");
        assert!(outcome.events == expected.events, "{text}: events differ");
        assert_eq!(machines.progress(), twins.progress(), "{text}");
        applied(index, random.number());
        if random.once_in(20) {
            machines = Machines::open(store).expect("the store can be read");
        }
    }
}

/// A command: well-formed and extreme, or damaged, or arbitrary bytes.
pub fn command(random: &mut Random) -> Command {
    let mut command = match random.below(8) {
        0 => system_operation(random).into_command(),
        1 => route_operation(random).into_command(),
        2 => ledger_command(random),
        3 => table_operation(random).into_command(),
        4 => auth_operation(random).into_command(),
        5 => function_operation(random).into_command(),
        _ => kv_operation(random).into_command(),
    };
    match random.below(10) {
        0 => command.bytes = damaged(random, &command.bytes),
        1 => command.bytes = (0..random.below(60)).map(|_| random.number() as u8).collect(),
        2 => command.face = Face::try_from(random.below(7) as u8).expect("there are seven"),
        3..6 => command = command.admitted(number(random)),
        _ => {}
    }
    command
}

fn damaged(random: &mut Random, bytes: &[u8]) -> Bytes {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.number() as u8),
            2 => bytes.extend_from_within(at..),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.number() as u8),
        }
    }
    bytes.into()
}

// Parts of commands.

fn size(random: &mut Random) -> usize {
    match random.below(4) {
        0 => STORE_KEY_BYTES_MAX - random.below(16) as usize + random.below(16) as usize,
        1 => [u16::MAX as usize, 1 << 16, 70_000, 200_000][random.below(4) as usize],
        _ => [0, 1, 127, 255, 256, 257, 4096, 1 << 15][random.below(8) as usize],
    }
}

/// One of a few usual strings, or one of an extreme size.
fn text(random: &mut Random) -> String {
    let which = random.below(4);
    if random.once_in(4) {
        ["k", "\0", "é"][random.below(3) as usize].repeat(size(random))
    } else {
        format!("k{which}")
    }
}

fn bytes(random: &mut Random) -> Bytes {
    if random.once_in(12) { vec![0xff; size(random)].into() } else { text(random).into() }
}

fn range_end(random: &mut Random) -> Bytes {
    match random.below(3) {
        0 => Bytes::from_static(b"\0"),
        1 => bytes(random),
        _ => Bytes::new(),
    }
}

fn number(random: &mut Random) -> u64 {
    match random.below(3) {
        0 => [0, 1, u64::MAX, u64::MAX - 1, i64::MAX as u64, i64::MIN as u64][random.below(6) as usize],
        1 => random.number(),
        _ => random.below(6),
    }
}

fn signed(random: &mut Random) -> i64 {
    number(random) as i64
}

fn small(random: &mut Random) -> u32 {
    if random.once_in(4) { number(random) as u32 } else { random.below(5) as u32 }
}

// The faces' commands.

fn auth_operation(random: &mut Random) -> auth::Operation {
    use auth::Operation;
    let name = |random: &mut Random| if random.once_in(3) { auth::ROOT.to_string() } else { text(random) };
    match random.below(14) {
        0 => Operation::Enable(auth::Enable { secret: bytes(random) }),
        1..3 => Operation::Disable(true),
        3 | 4 => Operation::AddUser(auth::AddUser { name: name(random), hash: text(random) }),
        5 => Operation::DeleteUser(name(random)),
        6 => Operation::SetPassword(auth::SetPassword { name: name(random), hash: text(random) }),
        7 | 8 => Operation::GrantRole(auth::UserRole { user: name(random), role: name(random) }),
        9 => Operation::RevokeRole(auth::UserRole { user: name(random), role: name(random) }),
        10 => Operation::AddRole(name(random)),
        11 => Operation::DeleteRole(name(random)),
        which => {
            let scope = if random.once_in(3) {
                auth::Scope::Part(auth::FaceGrant { part: small(random) as i32, rights: small(random) })
            } else {
                let (rights, key) = (small(random) as i32, bytes(random));
                auth::Scope::Keys(auth::KeyRange { rights, key, range_end: range_end(random) })
            };
            let grant = (!random.once_in(9)).then_some(auth::Grant { scope: Some(scope) });
            let grant = auth::RoleGrant { role: name(random), grant };
            if which == 12 { Operation::Grant(grant) } else { Operation::Revoke(grant) }
        }
    }
}

fn function_operation(random: &mut Random) -> function::Operation {
    let library = |random: &mut Random| {
        let function = |random: &mut Random| {
            let description = random.once_in(2).then(|| bytes(random));
            function::Function { name: text(random), description, flags: small(random) }
        };
        let functions = (0..random.below(3)).map(|_| function(random)).collect();
        function::Library { name: text(random), code: bytes(random), functions }
    };
    if random.once_in(4) {
        return function::Operation::Delete(text(random));
    }
    let libraries = (0..random.below(3)).map(|_| library(random)).collect();
    function::Operation::Load(function::Load { libraries, existing: small(random) as i32 })
}

fn system_operation(random: &mut Random) -> system::Operation {
    let alarm = |random: &mut Random| system::Alarm { member: number(random), kind: small(random) as i32 };
    match random.below(9) {
        0 => system::Operation::Compact(number(random)),
        1 => {
            let addresses = vec![text(random); random.below(3) as usize];
            let (name, learner) = (text(random), random.once_in(2));
            let (peer_addresses, client_urls) = (addresses.clone(), addresses);
            let (id, disk) = (random.below(4), number(random));
            let member = system::Member { id, name, peer_addresses, client_urls, learner, disk };
            system::Operation::SetMember(member)
        }
        2 => system::Operation::RemoveMember(random.below(4)),
        3 => system::Operation::RaiseAlarm(alarm(random)),
        4 => system::Operation::ClearAlarm(alarm(random)),
        5 => {
            let (member, disk, new) = (random.below(4), number(random), random.once_in(2));
            system::Operation::ClaimDisk(system::DiskClaim { member, disk, new })
        }
        6 => {
            let (member, name) = (random.below(4), text(random));
            let client_urls = vec![text(random); random.below(3) as usize];
            system::Operation::Introduce(system::Introduction { member, name, client_urls })
        }
        7 => system::Operation::Expire(random.below(2000) as u32),
        _ => system::Operation::Tick(true),
    }
}

fn kv_operation(random: &mut Random) -> kv::Operation {
    match random.below(10) {
        0 => kv::Operation::Delete(delete(random)),
        1 | 2 => kv::Operation::Txn(txn(random, 0)),
        3 => kv::Operation::LeaseGrant(kv::LeaseGrant { id: signed(random), ttl_s: signed(random) }),
        4 => kv::Operation::LeaseRevoke(signed(random)),
        5 => kv::Operation::LeaseKeepAlive(signed(random)),
        7 => kv::Operation::WriteFields(write_fields(random)),
        6 => kv::Operation::Increment(kv::Increment { key: bytes(random), by: signed(random) }),
        _ => kv::Operation::Put(put(random)),
    }
}

fn put(random: &mut Random) -> kv::Put {
    let ttl = match random.below(6) {
        0 => Some(kv::Ttl::Milliseconds(number(random))),
        1 => Some(kv::Ttl::At(number(random))),
        2 => Some(kv::Ttl::Keep(random.once_in(2))),
        3 => Some(kv::Ttl::Restart(random.once_in(2))),
        _ => None,
    };
    let metadata = if random.once_in(30) { size(random) / 10 } else { random.below(3) as usize };
    kv::Put {
        key: bytes(random),
        value: if random.once_in(3) { signed(random).to_string().into() } else { bytes(random) },
        lease: if random.once_in(3) { signed(random) } else { 0 },
        prev_kv: random.once_in(2),
        ignore_value: random.once_in(6),
        ignore_lease: random.once_in(6),
        ttl,
        metadata: vec![signed(random); metadata],
        keep_metadata: random.once_in(6),
    }
}

fn write_fields(random: &mut Random) -> kv::WriteFields {
    let ttl = |random: &mut Random| match random.below(9) {
        0 => Some(kv::Ttl::Milliseconds(number(random))),
        1 => Some(kv::Ttl::At(number(random))),
        2 => Some(kv::Ttl::Keep(random.once_in(2))),
        3 => Some(kv::Ttl::Restart(random.once_in(2))),
        _ => None,
    };
    let many = random.once_in(20);
    let changes = (0..if many { 3000 } else { random.below(4) }).map(|at| {
        let action = match random.below(8) {
            0 => None,
            1 => Some(kv::FieldAction::PutNew(bytes(random))),
            2 => Some(kv::FieldAction::Add(signed(random))),
            3 => Some(kv::FieldAction::Delete(random.once_in(2))),
            4 => Some(kv::FieldAction::Expire(random.once_in(2))),
            _ => Some(kv::FieldAction::Put(signed(random).to_string().into())),
        };
        match many {
            true => kv::FieldChange {
                field: at.to_string().into(),
                action: Some(kv::FieldAction::Put(Bytes::new())),
                ttl: ttl(random),
            },
            false => kv::FieldChange { field: bytes(random), action, ttl: ttl(random) },
        }
    });
    kv::WriteFields {
        changes: changes.collect(),
        key: bytes(random),
        anew: random.once_in(6),
        persist: random.once_in(6),
        from: if random.once_in(4) { bytes(random) } else { Bytes::new() },
        ttl: ttl(random),
    }
}

fn delete(random: &mut Random) -> kv::Delete {
    kv::Delete { key: bytes(random), range_end: range_end(random), prev_kv: random.once_in(2) }
}

fn publish(random: &mut Random) -> kv::Publish {
    kv::Publish { channel: bytes(random), payload: bytes(random) }
}

fn range(random: &mut Random) -> kv::Range {
    let bound = |random: &mut Random| if random.once_in(4) { signed(random) } else { 0 };
    kv::Range {
        key: bytes(random),
        range_end: range_end(random),
        limit: bound(random),
        revision: bound(random),
        sort_order: small(random) as i32,
        sort_target: small(random) as i32,
        keys_only: random.once_in(3),
        count_only: random.once_in(3),
        min_mod_revision: bound(random),
        max_mod_revision: bound(random),
        min_create_revision: bound(random),
        max_create_revision: bound(random),
    }
}

fn txn(random: &mut Random, depth: u64) -> kv::Txn {
    let compare = (0..random.below(3)).map(|_| compare(random)).collect();
    let mut steps = || (0..random.below(4)).map(|_| step(random, depth)).collect();
    let (success, failure) = (steps(), steps());
    kv::Txn { compare, success, failure }
}

fn step(random: &mut Random, depth: u64) -> kv::TxnOperation {
    let step = match random.below(8) {
        0 => return kv::TxnOperation { step: None },
        1 | 2 => Step::Range(range(random)),
        3 if random.once_in(4) => Step::Publish(publish(random)),
        3 => Step::Delete(delete(random)),
        6 => Step::WriteFields(write_fields(random)),
        // It ends: each level is less likely than the one above it.
        4 | 5 if random.below(4 + depth) < 3 => Step::Txn(txn(random, depth + 1)),
        _ => Step::Put(put(random)),
    };
    kv::TxnOperation { step: Some(step) }
}

fn compare(random: &mut Random) -> kv::Compare {
    let target = match random.below(8) {
        0 => kv::CompareTarget::Version(signed(random)),
        1 => kv::CompareTarget::CreateRevision(signed(random)),
        2 => kv::CompareTarget::ModRevision(signed(random)),
        3 => kv::CompareTarget::Value(bytes(random)),
        4 => kv::CompareTarget::Lease(signed(random)),
        5 => kv::CompareTarget::Stamp(number(random)),
        _ => kv::CompareTarget::Metadata(kv::MetadataAt { position: small(random), value: signed(random) }),
    };
    kv::Compare {
        result: small(random) as i32,
        key: bytes(random),
        range_end: range_end(random),
        target: (!random.once_in(10)).then_some(target),
        absent_passes: random.once_in(2),
    }
}

fn route_operation(random: &mut Random) -> route::Operation {
    let key = |random: &mut Random| {
        let ip = [[10, 0, 0, random.below(3) as u8]; 1][0].into();
        route::RuleKey { vni: random.below(3) as u32, ip }
    };
    match random.below(8) {
        which @ (0 | 1 | 7) => {
            let (mut packed, mut scratch) = (Vec::new(), Vec::new());
            for _ in 0..random.below(4) {
                let group = bytes(random).slice(..);
                let group = group.slice(..group.len().min(route::GROUP_BYTES_MAX));
                let rule = route::Rule {
                    key: key(random),
                    mac: random.once_in(2).then_some([7; 6]),
                    host_ip: random.once_in(2).then_some([1, 2, 3, 4].into()),
                    host_mac: random.once_in(2).then_some([9; 6]),
                    group,
                    revision: number(random),
                    user_data: bytes(random),
                };
                route::pack_rule(&mut packed, &rule, &mut scratch);
            }
            if which != 7 {
                return route::Operation::Put(packed.into());
            }
            let mut conditions = Vec::new();
            for _ in 0..random.below(3) {
                let condition = route::Condition { key: key(random), revision: number(random) };
                route::pack_condition(&mut conditions, &condition, &mut scratch);
            }
            let deletes = route::pack_keys(&[key(random), key(random)]);
            route::Operation::Write(route::Write {
                puts: packed.into(),
                deletes,
                conditions: conditions.into(),
            })
        }
        2 => route::Operation::Delete(route::pack_keys(&[key(random), key(random)])),
        3 => route::Operation::DeleteMany(route::DeleteMany {
            group: random.once_in(2).then(|| bytes(random)),
            vni: small(random),
            limit: small(random),
            not_after: number(random),
        }),
        4 => {
            let vpc = [0x0a, 2, 0x10, small(random) as u8];
            let body = if random.once_in(2) { Bytes::copy_from_slice(&vpc) } else { bytes(random) };
            let (name, alone) = (bytes(random), random.once_in(2));
            route::Operation::PutObject(route::PutObject { kind: small(random), name, body, alone })
        }
        5 => route::Operation::DeleteObject(route::DeleteObject { kind: small(random), name: bytes(random) }),
        _ => route::Operation::Heartbeat(route::Heartbeat {
            node: bytes(random),
            ttl_ms: number(random),
            applied_revision: number(random),
        }),
    }
}

fn ledger_command(random: &mut Random) -> Command {
    match random.below(5) {
        0 => {
            let accounts = (0..random.below(4)).map(|_| new_account(random)).collect();
            if random.once_in(3) {
                ledger::Operation::create_accounts_keyed(accounts, key(random)).into_command()
            } else {
                ledger::Operation::create_accounts(accounts).into_command()
            }
        }
        1 => {
            let update = ledger::UpdateAccount {
                status: random.once_in(2).then(|| small(random) as i32),
                rule: random.once_in(2).then(|| small(random) as i32),
                limit_low: number(random),
                limit_high: number(random),
                user_data: random.once_in(2).then(|| text(random)),
                metadata: BTreeMap::from([(text(random), text(random))]),
                replace_metadata: random.once_in(2),
                unchanged_since: number(random),
                ..ledger::UpdateAccount::of(account(random))
            };
            ledger::Operation::UpdateAccount(update).into_command()
        }
        2 => {
            let (code, scale) = (["K", "KKK", "TOOLONGCODE"][random.below(3) as usize].into(), small(random));
            ledger::Operation::CreateCurrency(ledger::NewCurrency { code, scale }).into_command()
        }
        _ => transfers(random),
    }
}

/// One of a few accounts, or an extreme number.
fn account(random: &mut Random) -> u128 {
    if random.once_in(6) { wide(random) } else { 1 + u128::from(random.below(4)) }
}

fn wide(random: &mut Random) -> u128 {
    u128::from(number(random)) << 64 | u128::from(number(random))
}

fn new_account(random: &mut Random) -> ledger::NewAccount {
    let number = if random.once_in(2) { text(random) } else { String::new() };
    let account = ledger::NewAccount {
        number,
        currency: ["EUR", "JPY", "KKK", "", "eur"][random.below(5) as usize].into(),
        rule: small(random) as i32,
        user_data: text(random),
        metadata: BTreeMap::from([(text(random), text(random))]),
        maximum: random.once_in(3).then(|| wide(random).into()),
        linked: random.once_in(3),
        opening: random.once_in(3).then(|| wide(random).into()),
        status: small(random) as i32,
        ..ledger::NewAccount::default()
    };
    let id = self::account(random);
    account.with_id(id).with_limit(wide(random))
}

fn transfers(random: &mut Random) -> Command {
    let mut transfers = ledger::Transfers::new(random.once_in(2));
    let texts = [text(random), text(random)];
    for _ in 0..random.below(8) {
        let amount = if random.once_in(3) { wide(random) } else { random.below(9).into() };
        let (debit, credit) = (account(random), account(random));
        let kind = match random.below(6) {
            0 => ledger::Kind::Pending { debit, credit, amount, timeout_ms: number(random) },
            1 => ledger::Kind::Post {
                pending: account(random),
                amount: Some(amount).filter(|amount| *amount > 0),
            },
            2 => ledger::Kind::Void { pending: account(random) },
            3 if random.once_in(8) => ledger::Kind::Expired { pending: account(random) },
            3 if random.once_in(2) => ledger::Kind::Revert { reverted: account(random) },
            _ => ledger::Kind::Single { debit, credit, amount },
        };
        // Few ids, so that some are used again; ids of all kinds.
        let id = if random.once_in(3) { account(random) } else { wide(random) };
        transfers.push(&ledger::Transfer {
            linked: random.once_in(3),
            currency: random.once_in(4).then(|| "EUR".parse().expect("a code")),
            code: small(random),
            reference: if random.once_in(8) { &texts[0] } else { "" },
            user_data: if random.once_in(8) { &texts[1] } else { "" },
            options: ledger::Options {
                balancing_debit: random.once_in(6),
                balancing_credit: random.once_in(6),
                closing_debit: random.once_in(9),
                closing_credit: random.once_in(9),
            },
            times: ledger::Times {
                client_ms: if random.once_in(6) { number(random) } else { 0 },
                settle_ms: if random.once_in(6) { number(random) } else { 0 },
                imported: random.once_in(9),
            },
            ..ledger::Transfer::new(id, kind)
        });
    }
    if random.once_in(4) {
        transfers.set_key(key(random));
    }
    if random.once_in(4) {
        let (number, after) = (random.below(5), random.below(4));
        transfers.set_fence(ledger::Fence { stream: account(random), number, after });
    }
    transfers.into_command()
}

/// One of a few keys, which are ids of accounts and transfers too, with one of few fingerprints.
fn key(random: &mut Random) -> ledger::Key {
    ledger::Key { id: account(random), fingerprint: random.below(2).into() }
}

fn table_operation(random: &mut Random) -> table::Operation {
    let name = text(random);
    let version = if random.once_in(4) { number(random) } else { random.below(4) };
    match random.below(9) {
        8 => table::Operation::Forget(table::Forget { name }),
        0 | 1 => {
            let shape =
                table::Shape { shards: small(random), width_plus_1: small(random), codec: text(random) };
            table::Operation::Publish(table::Publish {
                name,
                id: text(random),
                over: if random.once_in(3) { text(random) } else { String::new() },
                location: text(random),
                manifest: bytes(random),
                shape: (!random.once_in(9)).then_some(shape),
                folds: number(random),
                new_shape: random.once_in(2),
                keep: small(random),
            })
        }
        2 => {
            table::Operation::Ready(table::Ready { name, version, member: random.below(4), id: text(random) })
        }
        3 => table::Operation::Failed(table::Failed {
            name,
            version,
            member: number(random),
            reason: text(random),
            transient: random.once_in(2),
            id: text(random),
        }),
        4 => {
            let without_waiting = random.once_in(2);
            table::Operation::Activate(table::Activate { name, version, without_waiting })
        }
        5 => table::Operation::Rollback(table::Rollback { name }),
        6 => table::Operation::Drop(table::Drop { name, version }),
        _ => {
            let upsert = table::Upsert { key: number(random), value: bytes(random) };
            let (upserts, deletes) = (vec![upsert; 2], vec![number(random), number(random)]);
            table::Operation::Write(table::Write { name, upserts, deletes })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::COMMAND_BYTES_MAX;
    use crate::{Order, Reply, View};

    /// A replica in memory.
    struct Replica {
        store: MemoryStore,
        machines: Machines,
    }

    impl Replica {
        fn new(store: MemoryStore) -> Self {
            let machines = Machines::open(&store).unwrap();
            Self { store, machines }
        }

        /// Started again.
        fn restarted(self) -> Self {
            Self::new(self.store)
        }

        /// Another one, made from what a snapshot of this one holds.
        fn restored(self) -> Self {
            let store = MemoryStore::new();
            for version in self.store.versions(self.machines.progress().sequence) {
                match version.unwrap() {
                    (key, at, Some(value)) => store.put(&key, value, at),
                    (key, at, None) => store.delete(&key, at),
                }
            }
            Self::new(store)
        }

        fn apply(&mut self, term: Term, payload: Bytes) -> (String, Vec<(Bytes, Bytes)>) {
            let index = self.machines.progress().index.next();
            let outcome = self.machines.apply(&self.store, index, term, payload).unwrap();
            let progress = self.machines.progress();
            let state = View::new(&self.store, progress.sequence).scan(b"", b"", Order::Ascending);
            (format!("{outcome:?} {progress:?}"), state.map(Result::unwrap).collect())
        }
    }

    /// What a machine remembers must not be seen: not in replies, events or state, wherever a replica restarts.
    #[test]
    fn replicas_that_restart_or_are_restored_at_any_entry_agree_with_one_that_never_did() {
        for seed in 100..106 {
            let mut random = Random::new(seed);
            let new = || Replica::new(MemoryStore::new());
            let (mut steady, mut restarted, mut restored) = (new(), new(), new());
            let mut stamp = 1_000_000;
            for entry in 0..150 {
                stamp += random.below(2000);
                let commands: Vec<Command> = (0..1 + random.below(6)).map(|_| command(&mut random)).collect();
                let payload = Batch::encode(Stamp(stamp), &commands);
                let term = Term(1 + entry / 40);
                let expected = steady.apply(term, payload.clone());
                for (name, replica) in [("restarted", &mut restarted), ("restored", &mut restored)] {
                    let found = replica.apply(term, payload.clone());
                    assert!(found == expected, "seed {seed}, entry {entry}: the one {name} differs");
                }
                restarted = restarted.restarted();
                if random.once_in(5) {
                    restored = restored.restored();
                }
            }
        }
    }

    #[test]
    fn whatever_can_be_decoded_can_be_applied() {
        for seed in 0..4 {
            check(&MemoryStore::new(), seed, 200, &mut |_, _| ());
        }
    }

    /// A Redis client's SET with a key of 65,530 bytes stopped every replica in apply, and again at each
    /// start.
    #[test]
    fn the_longest_key_of_each_face_is_stored_and_a_longer_one_refused() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let mut apply = |command: Command| {
            let index = machines.progress().index.next();
            let payload = Batch::encode(Stamp(1), &[command]);
            let mut replies = machines.apply(&store, index, Term(1), payload).unwrap().replies;
            replies.pop().expect("a reply to the command")
        };
        let grant = kv::LeaseGrant { id: 7, ttl_s: 60 };
        apply(kv::Operation::LeaseGrant(grant).into_command());
        let mut put = |bytes: usize, metadata: usize| {
            let (key, ttl) = (Bytes::from(vec![b'k'; bytes]), Some(kv::Ttl::Milliseconds(9)));
            let put = kv::Put { key, ttl, lease: 7, metadata: vec![-1; metadata], ..kv::Put::default() };
            match apply(kv::Operation::Put(put).into_command()) {
                Reply::Kv(reply) => reply.result.map(|_| ()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(put(kv::KEY_BYTES_MAX, kv::METADATA_MAX), Ok(()));
        let bytes = kv::KEY_BYTES_MAX + 1;
        assert_eq!(put(bytes, 0), Err(kv::Refusal::KeyTooLong { bytes }));
        let count = kv::METADATA_MAX + 1;
        assert_eq!(put(1, count), Err(kv::Refusal::TooMuchMetadata { count }));
        let key = Bytes::from(vec![b'k'; bytes]);
        let longer = kv::Operation::Increment(kv::Increment { key, by: 1 });
        assert!(matches!(apply(longer.into_command()), Reply::Kv(reply) if reply.result.is_err()));

        let node = |bytes: usize| route::PutObject {
            kind: route::ObjectKind::Node as u32,
            name: vec![b'n'; bytes].into(),
            ..route::PutObject::default()
        };
        let longest = node(route::NAME_BYTES_MAX);
        let beat = route::Heartbeat { node: longest.name.clone(), ttl_ms: 9, applied_revision: 0 };
        let done = Ok(route::Response::Done);
        for operation in [route::Operation::PutObject(longest), route::Operation::Heartbeat(beat)] {
            assert!(matches!(apply(operation.into_command()), Reply::Route(reply) if reply.result == done));
        }
        let bytes = route::NAME_BYTES_MAX + 1;
        let refused = Err(route::Refusal::NameTooLong { bytes });
        let longer = route::Operation::PutObject(node(bytes)).into_command();
        assert!(matches!(apply(longer), Reply::Route(reply) if reply.result == refused));

        let mut publish = |bytes: usize| {
            let (name, shape) = ("t".repeat(bytes), Some(table::Shape::default()));
            let publish = table::Publish { name, shape, ..table::Publish::default() };
            match apply(table::Operation::Publish(publish).into_command()) {
                Reply::Table(reply) => reply.result,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(publish(table::NAME_BYTES_MAX), Ok(1));
        let bytes = table::NAME_BYTES_MAX + 1;
        assert_eq!(publish(bytes), Err(table::Refusal::NameTooLong { bytes }));

        let mut asked = |command: Command| match apply(command) {
            Reply::Ledger(reply) => reply.response,
            other => panic!("{other:?}"),
        };
        let mut create = |bytes: usize| {
            let (number, currency) = ("n".repeat(bytes), "EUR".into());
            let account = ledger::NewAccount { number, currency, ..ledger::NewAccount::default() };
            let account = account.with_id(bytes as u128);
            match asked(ledger::Operation::create_accounts(vec![account]).into_command()) {
                ledger::Response::Accounts(mut made, _) => made.pop().expect("one was asked for").map(|_| ()),
                other => panic!("{other:?}"),
            }
        };
        let longest = ledger::NUMBER_BYTES_MAX;
        assert_eq!(create(longest), Ok(()));
        assert_eq!(create(longest + 1), Err(ledger::AccountCode::NumberReserved));
        let mut transfer = |reference: usize, user_data: usize| {
            let (reference, user_data) = ("r".repeat(reference), "u".repeat(user_data));
            let (reference, user_data) = (&reference[..], &user_data[..]);
            let kind = ledger::Kind::Single { debit: 1, credit: 2, amount: 3 };
            let mut transfers = ledger::Transfers::new(false);
            transfers.push(&ledger::Transfer { reference, user_data, ..ledger::Transfer::new(9, kind) });
            asked(transfers.into_command()) != ledger::Response::Malformed
        };
        let longest = ledger::REFERENCE_BYTES_MAX;
        assert!(transfer(longest, longest) && !transfer(longest + 1, 0) && !transfer(0, longest + 1));
    }

    #[test]
    fn a_command_longer_than_any_may_be_is_refused_by_every_face() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        // Field 15, which every message skips, so that only the length is wrong.
        let skipped = |bytes: usize, begin: &[u8]| {
            let mut out = begin.to_vec();
            out.push(15 << 3 | 2);
            let left = bytes - out.len() - 4;
            crate::codec::put_varint(&mut out, left as u64);
            out.resize(bytes, 0);
            Bytes::from(out)
        };
        let tick = system::Operation::Tick(true).into_command().bytes;
        let commands = [
            (Face::System, &tick[..]),
            (Face::Kv, &kv::Operation::LeaseRevoke(1).into_command().bytes),
            (Face::Route, &route::Operation::Put(Bytes::new()).into_command().bytes),
            (Face::Table, &table::Operation::Rollback(table::Rollback::default()).into_command().bytes),
            (Face::Ledger, &ledger::Operation::create_accounts(Vec::new()).into_command().bytes),
            (Face::Auth, &auth::Operation::Disable(true).into_command().bytes),
            (Face::Function, &function::Operation::Delete("l".into()).into_command().bytes),
        ]
        .map(|(face, begin)| [0, 1].map(|more| (face, skipped(COMMAND_BYTES_MAX + more, begin))));
        for [(face, longest), (_, longer)] in commands {
            for (bytes, understood) in [(longest, true), (longer, false)] {
                let index = machines.progress().index.next();
                let payload = Batch::encode(Stamp(1), &[Command { face, bytes }]);
                let reply = machines.apply(&store, index, Term(1), payload).unwrap().replies.pop();
                let malformed = format!("{reply:?}").contains("Malformed");
                assert_eq!(malformed, !understood, "{face:?}: {reply:?}");
            }
        }
    }
}
