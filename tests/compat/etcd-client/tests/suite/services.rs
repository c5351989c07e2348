//! Each of etcd's services on three replicas, through every call of etcd-client.

use anyhow::{Context, Result, ensure};
use etcd_client::{
    AlarmAction, AlarmType, Client, Compare, CompareOp, DeleteOptions, Error, EventType, GetOptions,
    LeaseGrantOptions, LeaseTimeToLiveOptions, LockOptions, MemberAddOptions, ProclaimOptions, PutOptions,
    ResignOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, WatchFilterType, WatchOptions,
    WatchResponse, WatchStream,
};
use quoin_compat_etcd_client::{client_of, connect, start, wait};

/// The message of an error.
fn words<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => "it was not refused".into(),
        Err(Error::GRpcStatus(status)) => status.message().into(),
        Err(other) => other.to_string(),
    }
}

fn keys(response: &etcd_client::GetResponse) -> Vec<String> {
    response.kvs().iter().map(|kv| String::from_utf8_lossy(kv.key()).into_owned()).collect()
}

fn revision(header: Option<&etcd_client::ResponseHeader>) -> Result<i64> {
    Ok(header.context("a header")?.revision())
}

#[tokio::test]
async fn keys_are_written_read_and_deleted() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = connect(&cluster.client_addresses()).await?;
    let mut first = 0;
    for (number, key) in ["a/1", "a/2", "a/3", "b/1"].into_iter().enumerate() {
        let put = client.put(key, format!("{}", 9 - number), None).await?;
        first = if number == 0 { revision(put.header())? } else { first };
    }
    let put = client.put("a/2", "new", Some(PutOptions::new().with_prev_key())).await?;
    ensure!(put.prev_key().is_some_and(|kv| kv.value() == b"8" && kv.version() == 1), "{put:?}");

    let all = client.get("a/", Some(GetOptions::new().with_prefix())).await?;
    ensure!(keys(&all) == ["a/1", "a/2", "a/3"] && all.count() == 3 && !all.more(), "{all:?}");
    let kv = &all.kvs()[1];
    ensure!(
        kv.version() == 2 && kv.create_revision() == first + 1 && kv.mod_revision() == first + 4,
        "{kv:?}"
    );
    let some = client.get("a/", Some(GetOptions::new().with_prefix().with_limit(2))).await?;
    ensure!(keys(&some) == ["a/1", "a/2"] && some.count() == 3 && some.more(), "{some:?}");
    let range = client.get("a/2", Some(GetOptions::new().with_range("b/1"))).await?;
    ensure!(keys(&range) == ["a/2", "a/3"], "{range:?}");
    let rest = client.get("a/3", Some(GetOptions::new().with_from_key())).await?;
    ensure!(keys(&rest) == ["a/3", "b/1"], "{rest:?}");
    let sorted = GetOptions::new().with_prefix().with_sort(SortTarget::Value, SortOrder::Descend);
    ensure!(keys(&client.get("a/", Some(sorted)).await?) == ["a/2", "a/1", "a/3"], "by value, descending");
    let old = GetOptions::new().with_revision(first + 3);
    ensure!(client.get("a/2", Some(old.clone())).await?.kvs()[0].value() == b"8", "as of an old revision");
    let bare = client.get("", Some(GetOptions::new().with_all_keys().with_keys_only())).await?;
    ensure!(bare.count() == 4 && bare.kvs().iter().all(|kv| kv.value().is_empty()), "{bare:?}");
    let counted = client.get("a/", Some(GetOptions::new().with_prefix().with_count_only())).await?;
    ensure!(counted.count() == 3 && counted.kvs().is_empty(), "{counted:?}");
    let newer = GetOptions::new().with_prefix().with_min_mod_revision(first + 4);
    ensure!(keys(&client.get("a/", Some(newer)).await?) == ["a/2"], "by modification");
    let older = GetOptions::new().with_prefix().with_max_create_revision(first);
    ensure!(keys(&client.get("a/", Some(older)).await?) == ["a/1"], "by creation");

    let mut streamed = Vec::new();
    let mut pieces = client.kv_client().get_stream("a/", Some(GetOptions::new().with_prefix())).await?;
    while let Some(piece) = pieces.message().await? {
        streamed.extend(keys(&piece));
    }
    ensure!(streamed == ["a/1", "a/2", "a/3"], "{streamed:?}");

    let gone = client.delete("a/1", Some(DeleteOptions::new().with_prev_key())).await?;
    ensure!(gone.deleted() == 1 && gone.prev_kvs()[0].value() == b"9", "{gone:?}");
    ensure!(client.delete("a/", Some(DeleteOptions::new().with_prefix())).await?.deleted() == 2, "the rest");
    ensure!(client.get("a/", Some(GetOptions::new().with_prefix())).await?.kvs().is_empty(), "all gone");

    client.compact(first + 4, None).await?;
    let text = words(client.get("a/2", Some(old)).await);
    ensure!(text == "etcdserver: mvcc: required revision has been compacted", "{text}");
    let text = words(client.get("x", Some(GetOptions::new().with_revision(first + 1000))).await);
    ensure!(text == "etcdserver: mvcc: required revision is a future revision", "{text}");
    let text = words(client.put("", "v", None).await);
    ensure!(text == "etcdserver: key is not provided", "{text}");
    // Local reads catch up on every replica.
    for replica in 0..3 {
        let client = client_of(&cluster, replica).await?;
        wait("a local read", || async {
            let local = GetOptions::new().with_serializable();
            let count = client.clone().get("b/1", Some(local)).await?.count();
            ensure!(count == 1, "{count} keys");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn transactions_compare_and_branch() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = connect(&cluster.client_addresses()).await?;
    let lease = client.lease_grant(600, None).await?.id();
    let put = client.put("k", "v", Some(PutOptions::new().with_lease(lease))).await?;
    let created = revision(put.header())?;
    let compares = vec![
        Compare::value("k", CompareOp::Equal, "v"),
        Compare::version("k", CompareOp::Less, 2),
        Compare::create_revision("k", CompareOp::Equal, created),
        Compare::mod_revision("k", CompareOp::Greater, created - 1),
        Compare::lease("k", CompareOp::Equal, lease),
        Compare::version("k", CompareOp::NotEqual, 9).with_prefix(),
        Compare::create_revision("absent", CompareOp::Equal, 0),
    ];
    // As in etcd, all comparisons see the state before the transaction, nested ones too.
    let nested = Txn::new()
        .when([Compare::value("k", CompareOp::Equal, "v")])
        .and_then([TxnOp::put("nested", "yes", None)])
        .or_else([TxnOp::put("nested", "no", None)]);
    let success = [
        TxnOp::put("k", "w", Some(PutOptions::new().with_prev_key().with_ignore_lease())),
        TxnOp::get("k", None),
        TxnOp::txn(nested),
        TxnOp::delete("absent", None),
    ];
    let txn = Txn::new().when(compares).and_then(success).or_else([TxnOp::get("k", None)]);
    let reply = client.txn(txn.clone()).await?;
    ensure!(reply.succeeded() && revision(reply.header())? == created + 1, "{reply:?}");
    match &reply.op_responses()[..] {
        [
            TxnOpResponse::Put(put),
            TxnOpResponse::Get(get),
            TxnOpResponse::Txn(inner),
            TxnOpResponse::Delete(gone),
        ] => {
            ensure!(put.prev_key().is_some_and(|kv| kv.value() == b"v"), "{put:?}");
            ensure!(get.kvs()[0].value() == b"w" && get.kvs()[0].lease() == lease, "{get:?}");
            ensure!(inner.succeeded() && gone.deleted() == 0, "{inner:?} {gone:?}");
        }
        other => anyhow::bail!("{other:?}"),
    }
    ensure!(client.get("nested", None).await?.kvs()[0].value() == b"yes", "the nested transaction");
    let reply = client.txn(txn).await?;
    ensure!(!reply.succeeded(), "the value has changed");
    ensure!(matches!(&reply.op_responses()[..], [TxnOpResponse::Get(get)] if get.count() == 1), "{reply:?}");
    let twice = Txn::new().and_then([TxnOp::put("k", "1", None), TxnOp::put("k", "2", None)]);
    let text = words(client.txn(twice).await);
    ensure!(text == "etcdserver: duplicate key given in txn request", "{text}");
    Ok(())
}

#[tokio::test]
async fn leases_hold_keys_as_long_as_they_are_kept_alive() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = connect(&cluster.client_addresses()).await?;
    let granted = client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(77))).await?;
    ensure!(granted.id() == 77 && granted.ttl() == 600, "{granted:?}");
    let text = words(client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(77))).await);
    ensure!(text == "etcdserver: lease already exists", "{text}");
    client.put("long", "v", Some(PutOptions::new().with_lease(77))).await?;
    let left = client.lease_time_to_live(77, Some(LeaseTimeToLiveOptions::new().with_keys())).await?;
    ensure!(left.ttl() > 0 && left.granted_ttl() == 600 && left.keys() == [b"long".to_vec()], "{left:?}");

    // Of two equal leases one is kept alive, through another replica than the one that granted it.
    for (id, key) in [(1, "kept"), (2, "left")] {
        client.lease_grant(2, Some(LeaseGrantOptions::new().with_id(id))).await?;
        client.put(key, "v", Some(PutOptions::new().with_lease(id))).await?;
    }
    let (mut keeper, mut kept) = client_of(&cluster, 2).await?.lease_keep_alive(1).await?;
    let mut rounds = 0;
    while client.get("left", None).await?.count() > 0 || rounds < 5 {
        keeper.keep_alive().await?;
        let answer = kept.message().await?.context("an answer to a keep-alive")?;
        ensure!(answer.id() == 1 && answer.ttl() == 2, "{answer:?}");
        rounds += 1;
    }
    ensure!(client.get("kept", None).await?.count() == 1, "a lease that was kept alive has expired");
    let leases: Vec<i64> = client.leases().await?.leases().iter().map(|lease| lease.id()).collect();
    ensure!(leases.contains(&1) && leases.contains(&77) && !leases.contains(&2), "{leases:?}");
    ensure!(client.lease_time_to_live(2, None).await?.ttl() == -1, "an expired lease has no time left");
    ensure!(client.lease_keep_alive(2).await.is_err(), "an expired lease was kept alive");

    client.lease_revoke(77).await?;
    ensure!(client.get("long", None).await?.count() == 0, "a revoked lease leaves no key");
    for text in [
        words(client.lease_revoke(77).await),
        words(client.put("x", "v", Some(PutOptions::new().with_lease(77))).await),
    ] {
        ensure!(text == "etcdserver: requested lease not found", "{text}");
    }
    Ok(())
}

async fn message(stream: &mut WatchStream) -> Result<WatchResponse> {
    let message = tokio::time::timeout(quoin_compat_etcd_client::PATIENCE, stream.message()).await;
    message.context("no message")??.context("the stream ended")
}

fn told(message: &WatchResponse) -> Vec<(EventType, String)> {
    let tell = |event: &etcd_client::Event| {
        let key = event.kv().map(|kv| String::from_utf8_lossy(kv.key()).into_owned());
        (event.event_type(), key.unwrap_or_default())
    };
    message.events().iter().map(tell).collect()
}

#[tokio::test]
async fn watches_deliver_past_and_future_events() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = connect(&cluster.client_addresses()).await?;
    let first = revision(client.put("w/1", "old", None).await?.header())?;
    client.put("w/1", "new", None).await?;
    client.delete("w/1", None).await?;

    let mut other = client_of(&cluster, 1).await?;
    // After a linearizable read the replica has applied the writes, so the watch begins in the past.
    other.get("w/1", None).await?;
    let past = WatchOptions::new().with_prefix().with_start_revision(first).with_prev_key().with_watch_id(5);
    let mut stream = other.watch("w/", Some(past)).await?;
    let created = message(&mut stream).await?;
    ensure!(created.created() && created.watch_id() == 5, "{created:?}");
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(message(&mut stream).await?.events().to_vec());
    }
    let kinds: Vec<EventType> = events.iter().map(etcd_client::Event::event_type).collect();
    ensure!(kinds == [EventType::Put, EventType::Put, EventType::Delete], "{events:?}");
    ensure!(events[0].prev_kv().is_none(), "nothing was there");
    ensure!(events[1].prev_kv().is_some_and(|kv| kv.value() == b"old"), "{:?}", events[1]);
    ensure!(events[2].prev_kv().is_some_and(|kv| kv.value() == b"new"), "{:?}", events[2]);

    // A second watch on the stream, deletions only.
    let filtered =
        WatchOptions::new().with_watch_id(6).with_filters([WatchFilterType::NoPut]).with_fragment();
    stream.watch("only", Some(filtered)).await?;
    let created = message(&mut stream).await?;
    ensure!(created.created() && created.watch_id() == 6, "{created:?}");
    client.put("only", "v", None).await?;
    client.delete("only", None).await?;
    let deleted = message(&mut stream).await?;
    ensure!(deleted.watch_id() == 6 && told(&deleted) == [(EventType::Delete, "only".into())], "{deleted:?}");
    stream.request_progress().await?;
    let progress = message(&mut stream).await?;
    ensure!(progress.events().is_empty() && revision(progress.header())? >= first + 4, "{progress:?}");
    stream.cancel(5).await?;
    let canceled = message(&mut stream).await?;
    ensure!(canceled.canceled() && canceled.watch_id() == 5, "{canceled:?}");
    client.put("w/2", "v", None).await?;
    client.delete("only", None).await?;
    client.put("only", "v", None).await?;
    client.delete("only", None).await?;
    let next = message(&mut stream).await?;
    ensure!(next.watch_id() == 6, "a cancelled watch continues: {next:?}");

    // Compacted revisions cannot be watched.
    let newest = revision(client.get("only", None).await?.header())?;
    client.compact(newest, None).await?;
    other.get("only", None).await?;
    let mut stream = other.watch("w/", Some(WatchOptions::new().with_start_revision(first))).await?;
    let mut answer = message(&mut stream).await?;
    if !answer.canceled() {
        answer = message(&mut stream).await?;
    }
    ensure!(answer.canceled() && answer.compact_revision() == newest, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn a_lock_has_one_owner_and_a_growing_token() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = connect(&cluster.client_addresses()).await?;
    let mut token = 0;
    let mut next_token = async |client: &mut Client, key: &[u8]| -> Result<()> {
        let owner = client.get(key, None).await?;
        let created = owner.kvs().first().context("the owner's key")?.create_revision();
        ensure!(created > token, "token {created} after {token}");
        token = created;
        Ok(())
    };
    let lease = client.lease_grant(600, None).await?.id();
    let held = client.lock("lock", Some(LockOptions::new().with_lease(lease))).await?;
    next_token(&mut client, held.key()).await?;
    let mut second = client_of(&cluster, 1).await?;
    let waiting = tokio::spawn(async move { second.lock("lock", None).await });
    let looking = client.clone();
    let queued = || async {
        let queue = looking.clone().get("lock/", Some(GetOptions::new().with_prefix())).await;
        queue.is_ok_and(|queue| queue.count() == 2)
    };
    wait("the second to queue", queued).await?;
    ensure!(!waiting.is_finished(), "two owners");
    client.unlock(held.key()).await?;
    let held = waiting.await??;
    next_token(&mut client, held.key()).await?;
    let mut third = client_of(&cluster, 2).await?;
    let waiting = tokio::spawn(async move { third.lock("lock", None).await });
    wait("the third to queue", queued).await?;
    // When the owner's lease ends, the next in the queue owns the lock.
    let lease = client.get(held.key(), None).await?.kvs()[0].lease();
    client.lease_revoke(lease).await?;
    next_token(&mut client, waiting.await??.key()).await
}

#[tokio::test]
async fn an_election_has_one_leader_that_all_observe() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = connect(&cluster.client_addresses()).await?;
    let mut leases = Vec::new();
    for _ in 0..2 {
        leases.push(client.lease_grant(600, None).await?.id());
    }
    ensure!(words(client.leader("none").await) == "election: no leader", "nobody was elected yet");
    let mut observer = client_of(&cluster, 2).await?.observe("e").await?;
    let won = client.campaign("e", "one", leases[0]).await?;
    let key = won.leader().context("the leader's key")?.clone();
    ensure!(key.name() == b"e" && key.lease() == leases[0] && key.rev() > 0, "{key:?}");
    let (mut second, lease) = (client_of(&cluster, 1).await?, leases[1]);
    let waiting = tokio::spawn(async move { second.campaign("e", "two", lease).await });
    let queue = || async {
        let queue = client.clone().get("e/", Some(GetOptions::new().with_prefix())).await;
        queue.is_ok_and(|queue| queue.count() == 2)
    };
    wait("the second to stand", queue).await?;
    let options = ProclaimOptions::new().with_leader(key.clone());
    client.proclaim("one again", Some(options.clone())).await?;
    let leader = client.leader("e").await?;
    ensure!(leader.kv().is_some_and(|kv| kv.value() == b"one again"), "{leader:?}");
    ensure!(!waiting.is_finished(), "two leaders");
    client.resign(Some(ResignOptions::new().with_leader(key))).await?;
    waiting.await??;
    ensure!(client.leader("e").await?.kv().is_some_and(|kv| kv.value() == b"two"), "the second leads");
    ensure!(client.proclaim("late", Some(options)).await.is_err(), "a proclamation after resigning");
    // An observer may miss a leader that was replaced soon, and always sees the newest.
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != b"two") {
        let told = observer.message().await?.context("the observer's stream ended")?;
        seen.push(told.kv().context("a leader")?.value().to_vec());
    }
    Ok(())
}

#[tokio::test]
async fn members_are_listed_added_updated_and_removed() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = client_of(&cluster, cluster.leader()?).await?;
    let members = client.member_list().await?;
    let named =
        |name: &str| members.members().iter().any(|member| member.name() == name && !member.is_learner());
    ensure!(members.members().len() == 3 && (0..3).all(|n| named(&format!("r{n}"))), "{members:?}");
    let url = format!("http://{}", cluster.peer_address(3));
    let options = MemberAddOptions::new().with_is_learner();
    let added = client.member_add([url.clone()], Some(options.clone())).await?;
    let member = added.member().context("the new member")?.clone();
    ensure!(member.is_learner() && added.member_list().len() == 4, "{added:?}");
    let text = words(client.member_add([url], Some(options)).await);
    ensure!(text == "etcdserver: Peer URLs already exists", "{text}");
    let text = words(client.member_promote(member.id()).await);
    ensure!(text == "etcdserver: can only promote a learner member which is in sync with leader", "{text}");
    let elsewhere = "http://127.0.0.1:9";
    let updated = client.member_update(member.id(), [elsewhere.to_string()]).await?;
    let found = updated.members().iter().find(|other| other.id() == member.id()).context("the member")?;
    ensure!(found.peer_urls() == [elsewhere], "{updated:?}");
    let left = client.member_remove(member.id()).await?;
    ensure!(left.members().len() == 3, "{left:?}");
    let text = words(client.member_remove(member.id()).await);
    ensure!(text == "etcdserver: member not found", "{text}");
    Ok(())
}

#[tokio::test]
async fn maintenance_shows_and_moves_what_runs() -> Result<()> {
    let cluster = start(&[])?;
    let leader = cluster.leader()?;
    let mut client = client_of(&cluster, leader).await?;
    for number in 0..200 {
        client.put(format!("k{number}"), "v".repeat(1000), None).await?;
    }
    let newest = revision(client.get("k0", None).await?.header())?;
    let mut hashes = Vec::new();
    for replica in 0..3 {
        let mut client = client_of(&cluster, replica).await?;
        client.get("k0", None).await?;
        let status = client.status().await?;
        ensure!(status.version().starts_with("3.") && status.leader() != 0, "{status:?}");
        ensure!(
            status.raft_index() > 0 && status.raft_applied_index() > 0 && status.raft_term() > 0,
            "{status:?}"
        );
        ensure!(status.db_size() > 0 && !status.is_learner() && status.errors().is_empty(), "{status:?}");
        hashes.push(client.hash_kv(newest).await?.hash());
        client.hash().await?;
        client.defragment().await?;
    }
    ensure!(hashes[0] == hashes[1] && hashes[1] == hashes[2], "{hashes:?}");

    let mut snapshot = client.snapshot().await?;
    let mut bytes = 0;
    while let Some(piece) = snapshot.message().await? {
        bytes += piece.blob().len();
    }
    ensure!(bytes > 200_000 && bytes % 512 == 32, "a snapshot of {bytes} bytes");

    let raised = client.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await?;
    ensure!(raised.alarms().len() == 1, "{raised:?}");
    let text = words(client.put("k", "v", None).await);
    ensure!(text == "etcdserver: mvcc: database space exceeded", "{text}");
    ensure!(client.get("k0", None).await?.count() == 1, "reads go on");
    client.delete("k1", None).await?;
    ensure!(!client.status().await?.errors().is_empty(), "the status shows the alarm");
    client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None).await?;
    client.put("k", "v", None).await?;

    let mut next = client_of(&cluster, (leader + 1) % 3).await?;
    let target = next.status().await?.header().context("a header")?.member_id();
    client.move_leader(target).await?;
    wait("the leadership to move", || async {
        let leader = next.clone().status().await?.leader();
        ensure!(leader == target, "{leader:x} leads, not {target:x}");
        Ok(())
    })
    .await?;
    next.put("after", "v", None).await?;
    Ok(())
}
