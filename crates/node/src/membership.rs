//! Who this node is: by its folder, by the founders' list, or by asking the cluster that it joins.

use crate::config::Config;
use crate::error::{StartError, io_error};
use crate::identity::{Identity, LAYOUT_VERSION, draw_disk, number_of};
use quoin_consensus::greeting::identify as who_is_at;
use quoin_core::system;
use quoin_engine::join::{Joining, ask};
use quoin_engine::{Founding, Owner, Settle};
use quoin_tls::Keys;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// This node's identity, and peer addresses by id as far as they are known. A new node's identity is written
/// to its folder.
pub(crate) fn identify(
    config: &Config,
    keys: Option<&Keys>,
) -> Result<(Identity, BTreeMap<u64, String>), StartError> {
    let folder = &config.data_dir;
    let describe = |error| io_error(format!("reading the identity in {}", folder.display()), error);
    let holds_log = holds_log(folder).map_err(describe)?;
    let Some(mut identity) = Identity::read(folder).map_err(describe)? else {
        let held = if holds_log { Some("log") } else { holds_store(folder).then_some("store") };
        if let Some(held) = held {
            return Err(StartError::Identity(format!(
                "{} holds a {held}, and its identity.json is gone: put back what is missing, or delete the \
                folder, remove the member and add it anew",
                folder.display()
            )));
        }
        return begin(config, keys);
    };
    if identity.id == 0 {
        // It was told to join, and was not told who it is.
        return if config.join.is_empty() { begin(config, keys) } else { join(config, identity, keys) };
    }
    check(config, &identity, keys)?;
    if identity.layout < LAYOUT_VERSION {
        identity = adopt(config, identity, holds_log)?;
    }
    if !identity.settled && !identity.founder {
        return join(config, identity, keys);
    }
    let peers = identity.peers.clone();
    Ok((identity, peers))
}

/// Whether `folder` holds segments of a log.
fn holds_log(folder: &Path) -> io::Result<bool> {
    let entries = match std::fs::read_dir(folder.join("log")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        if entry?.path().extension().is_some_and(|extension| extension == "log") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether `folder` holds a store. It is made after the identity, so without one the log may be gone as well, and
/// with that what was acknowledged last.
fn holds_store(folder: &Path) -> bool {
    folder.join("store/CURRENT").exists()
}

/// The first start in an empty folder.
fn begin(config: &Config, keys: Option<&Keys>) -> Result<(Identity, BTreeMap<u64, String>), StartError> {
    if config.join.is_empty() {
        let (identity, peers) = founder(config, String::new());
        write(config, &identity)?;
        return Ok((identity, peers));
    }
    let (name, disk) = (config.name.clone(), draw_disk());
    let identity = Identity { layout: LAYOUT_VERSION, name, disk, ..Identity::default() };
    // The disk is kept before anybody hears of it: if the answer is lost, it is asked for again.
    write(config, &identity)?;
    join(config, identity, keys)
}

/// Gives a folder of layout 1 a disk. With its log there it has taken part, and goes on as what it was;
/// the cluster records the disk once it hears of it. Without a log it may have lost it, and is let in
/// like a new folder: not into a cluster that has heard of its member.
fn adopt(config: &Config, identity: Identity, settled: bool) -> Result<Identity, StartError> {
    let identity = Identity { layout: LAYOUT_VERSION, disk: draw_disk(), settled, ..identity };
    write(config, &identity)?;
    Ok(identity)
}

fn write(config: &Config, identity: &Identity) -> Result<(), StartError> {
    let folder = &config.data_dir;
    let describe = |error| io_error(format!("writing the identity in {}", folder.display()), error);
    identity.write(folder).map_err(describe)
}

fn check(config: &Config, identity: &Identity, keys: Option<&Keys>) -> Result<(), StartError> {
    let folder = config.data_dir.display();
    if identity.name != config.name {
        let (theirs, ours) = (&identity.name, &config.name);
        return Err(StartError::Identity(format!(
            "{folder} belongs to the node named {theirs:?}, and this one is named {ours:?}: use this node's folder or name"
        )));
    }
    let described = cluster_that_begins(config, &identity.restored);
    // A founder that has not taken part yet begins with the state that the settings describe.
    let unsettled = identity.layout == LAYOUT_VERSION && !identity.settled;
    let matters = identity.founder && (unsettled || !config.cluster.is_empty());
    if matters && described != identity.cluster {
        return Err(StartError::Identity(format!(
            "{folder} belongs to cluster {:016x}, and the settings cluster and cluster_token describe cluster \
             {described:016x}: use this node's folder, or the founders' list with which the folder was made",
            identity.cluster
        )));
    }
    // Those of the members to join that answer must be of its cluster. Nobody has to answer.
    for address in &config.join {
        if let Ok(found) = who_is_at(address, keys)
            && found.cluster != identity.cluster
        {
            return Err(StartError::Identity(format!(
                "{folder} belongs to cluster {:016x}, and {address}, which the setting join names, to cluster \
                {:016x}: use this node's folder, or delete this one to join the other cluster",
                identity.cluster, found.cluster
            )));
        }
    }
    Ok(())
}

fn cluster_id(config: &Config) -> u64 {
    let founders = config.founders();
    let texts = founders.iter().flat_map(|(name, address)| [name.as_str(), address.as_str()]);
    number_of(std::iter::once(config.cluster_token.as_str()).chain(texts))
}

/// Founders that begin with another state are of another cluster: with one token, those that were not restored could
/// elect one another and begin an empty one.
fn cluster_that_begins(config: &Config, restored: &str) -> u64 {
    let cluster = cluster_id(config);
    if restored.is_empty() { cluster } else { number_of([&*format!("{cluster:x}"), restored]) }
}

fn member_id(config: &Config, name: &str) -> u64 {
    number_of([&format!("{:x}", cluster_id(config)), name])
}

/// The identity of this node as a founder of a cluster that begins with the snapshot `restored`, or empty, and the
/// founders' peer addresses by id.
pub(crate) fn founder(config: &Config, restored: String) -> (Identity, BTreeMap<u64, String>) {
    let founders = config.founders();
    let peers = founders.iter().map(|(name, address)| (member_id(config, name), address.clone())).collect();
    let identity = Identity {
        layout: LAYOUT_VERSION,
        cluster: cluster_that_begins(config, &restored),
        id: member_id(config, &config.name),
        name: config.name.clone(),
        founder: true,
        disk: draw_disk(),
        settled: false,
        founders: BTreeMap::new(),
        peers: BTreeMap::new(),
        restored,
    };
    (identity, peers)
}

/// The state with which the cluster begins. The same on each founder, so disks are not in it; but the only founder
/// records its `disk` from the beginning, since nobody vouches for it.
pub(crate) fn founding(config: &Config, disk: u64) -> Founding {
    let founders = config.founders();
    let disk = if founders.len() == 1 { disk } else { 0 };
    let member = |(name, address): (String, String)| system::Member {
        id: member_id(config, &name),
        name,
        peer_addresses: vec![address],
        client_urls: Vec::new(),
        learner: false,
        disk,
    };
    Founding::of(founders.into_iter().map(member).collect())
}

/// Asks the cluster which member this node is: the one with its peer address. Its disk is recorded meanwhile.
fn join(
    config: &Config,
    identity: Identity,
    keys: Option<&Keys>,
) -> Result<(Identity, BTreeMap<u64, String>), StartError> {
    let own = config.peer_address();
    let mut failures = Vec::new();
    for address in &config.join {
        let (cluster, answer) = match ask(address, &own, identity.disk, keys) {
            Ok(answered) => answered,
            Err(error) => {
                failures.push(format!("{address}: {error}"));
                continue;
            }
        };
        match answer.means_to(identity.disk) {
            Joining::Member(id) => {
                // Kept: it may die before it has a store that knows them, and who has no peers listens to nobody.
                let identity = Identity { cluster, id, peers: answer.peers.clone(), ..identity };
                write(config, &identity)?;
                return Ok((identity, answer.peers));
            }
            Joining::Unrecorded(id) => failures.push(format!(
                "{address}: member {id:016x} has started before without a disk on record, or there is no \
                leader to record this one: try again, or remove the member and add it anew"
            )),
            Joining::OtherDisk { member: id, disk } => failures.push(format!(
                "{address}: member {id:016x} is already bootstrapped on another disk ({disk:016x}) than {:016x}, \
                which this data folder is on: put the old data folder back, or delete this one, remove the \
                member and add it anew",
                identity.disk
            )),
            Joining::NoMember => failures.push(format!(
                "{address}: cluster {cluster:016x} has no member with the peer address {own}; add it first (quoin cluster add)"
            )),
        }
    }
    Err(StartError::Identity(format!("cannot join: {}", failures.join("; "))))
}

/// The replica's owner in the engine's terms.
pub(crate) fn owner(identity: &Identity) -> Owner {
    Owner {
        cluster: identity.cluster,
        id: identity.id,
        disk: identity.disk,
        settled: identity.settled,
        disks: identity.founders.clone(),
    }
}

/// How it is written down that the node may take part.
pub(crate) fn settle(config: &Config, identity: Identity) -> Settle {
    let folder = config.data_dir.clone();
    Box::new(move |disks| Identity { settled: true, founders: disks.clone(), ..identity }.write(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;
    use quoin_engine::{LogConfig, MemberChange, RaftConfig, StoreConfig};
    use quoin_testkit::{Ports, wait};

    fn config(folder: &Path) -> Config {
        Config { data_dir: folder.into(), ..Config::default() }
    }

    fn put_segment(folder: &Path) {
        std::fs::create_dir_all(folder.join("log")).unwrap();
        std::fs::write(folder.join("log/0000000000000001.log"), "").unwrap();
    }

    #[test]
    fn a_new_folder_gets_a_disk_and_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let (first, _) = identify(&config, None).unwrap();
        assert!(first.disk != 0 && !first.settled && first.founder);
        assert_eq!(identify(&config, None).unwrap().0, first);
        settle(&config, first.clone())(&[(2, 3)].into()).unwrap();
        let founders = BTreeMap::from([(2, 3)]);
        assert_eq!(identify(&config, None).unwrap().0, Identity { settled: true, founders, ..first });
    }

    #[test]
    fn a_cluster_that_begins_with_a_snapshot_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let (empty, _) = founder(&config, String::new());
        let (restored, _) = founder(&config, "ab".into());
        let (other, _) = founder(&config, "cd".into());
        assert!(empty.cluster != restored.cluster && restored.cluster != other.cluster);
        assert_eq!((restored.id, empty.id), (other.id, other.id));
        restored.write(folder.path()).unwrap();
        assert_eq!(identify(&config, None).unwrap().0, restored);
    }

    /// A second member that joined at once did not know it, and did not tell the founder that it was lost.
    #[test]
    fn the_only_founder_begins_with_its_disk_and_several_with_none() {
        let disks = |others: &[&str]| {
            let cluster = others.iter().map(|name| (name.to_string(), "h:1".into())).collect();
            founding(&Config { cluster, ..Config::default() }, 7)
                .members
                .iter()
                .map(|member| member.disk)
                .collect::<Vec<_>>()
        };
        assert_eq!(disks(&[]), [7]);
        assert_eq!(disks(&["a", "b"]), [0, 0]);
    }

    /// Such a folder was taken for an empty one.
    #[test]
    fn a_folder_with_a_log_and_without_an_identity_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        put_segment(folder.path());
        let error = identify(&config(folder.path()), None).unwrap_err().to_string();
        assert!(error.contains("identity.json is gone"), "{error}");
    }

    /// A node that was alone went on from what its store had written out: the newest writes were gone.
    #[test]
    fn a_folder_with_a_store_and_without_an_identity_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("store")).unwrap();
        std::fs::write(folder.path().join("store/CURRENT"), "1\n").unwrap();
        let error = identify(&config(folder.path()), None).unwrap_err().to_string();
        assert!(error.contains("holds a store, and its identity.json is gone"), "{error}");
    }

    #[test]
    fn a_folder_of_layout_1_is_given_a_disk_and_is_settled_if_it_has_a_log() {
        for has_log in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let config = config(folder.path());
            let (identity, _) = founder(&config, String::new());
            let text = serde_json::json!({
                "layout": 1,
                "cluster": format!("{:x}", identity.cluster),
                "id": format!("{:x}", identity.id),
                "name": identity.name,
                "founder": true,
            });
            std::fs::write(folder.path().join("identity.json"), text.to_string()).unwrap();
            if has_log {
                put_segment(folder.path());
            }
            let (adopted, _) = identify(&config, None).unwrap();
            assert_eq!((adopted.layout, adopted.settled), (LAYOUT_VERSION, has_log));
            assert_ne!(adopted.disk, 0);
            assert_eq!(identify(&config, None).unwrap().0, adopted);
        }
    }

    /// A node that died between its first start and its first snapshot knew nobody when it started again, and was let
    /// in no more: it refuses members that it does not know.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_that_has_joined_still_knows_its_peers_at_the_next_start() {
        let (folder, ports) = (tempfile::tempdir().unwrap(), Ports::reserve().unwrap());
        let config = |node: u16| Config {
            data_dir: folder.path().join(node.to_string()),
            listen_client: ports.address(4 * node),
            listen_peer: ports.address(4 * node + 1),
            listen_http: ports.address(4 * node + 2),
            listen_resp: ports.address(4 * node + 3),
            raft: RaftConfig { tick_ms: 5, ..RaftConfig::default() },
            log: LogConfig { segment_bytes: 1 << 20, ..LogConfig::default() },
            store: StoreConfig { reserve_bytes: 0, ..StoreConfig::default() },
            ..Config::default()
        };
        let first = Node::start(config(0)).await.unwrap();
        let joins = Config { join: vec![config(0).peer_address()], ..config(1) };
        let added = system::Member {
            id: 5,
            peer_addresses: vec![joins.peer_address()],
            learner: true,
            ..system::Member::default()
        };
        let engine = first.engine();
        wait("it to be added", async || engine.change_members(MemberChange::Add(added.clone())).await)
            .await
            .unwrap();
        let peers = [(engine.id(), config(0).peer_address()), (5, joins.peer_address())].into();
        std::fs::create_dir(&joins.data_dir).unwrap();
        let (identity, told) = tokio::task::block_in_place(|| identify(&joins, None)).unwrap();
        assert_eq!(told, peers);
        settle(&joins, identity)(&BTreeMap::new()).unwrap();
        drop(engine);
        first.stop().await;
        assert_eq!(identify(&joins, None).unwrap().1, peers, "nobody tells it any more");
    }

    #[test]
    fn a_node_that_joins_keeps_its_disk_until_it_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        // Nobody listens there.
        let config = Config { join: vec!["127.0.0.1:1".into()], ..config(folder.path()) };
        let disk = || Identity::read(folder.path()).unwrap().unwrap().disk;
        assert!(identify(&config, None).unwrap_err().to_string().contains("cannot join"));
        let first = disk();
        assert!(identify(&config, None).is_err());
        assert_eq!(disk(), first);
    }
}
