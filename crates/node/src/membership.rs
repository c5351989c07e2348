//! Who this node is: by its folder, by the founders' list, or by asking the cluster that it joins.

use crate::config::Config;
use crate::error::{StartError, io_error};
use crate::identity::{Identity, LAYOUT_VERSION, number_of};
use quoin_consensus::greeting::identify as who_is_at;
use quoin_core::system;
use quoin_engine::Founding;
use quoin_engine::join::{JoinAnswer, ask};
use std::collections::BTreeMap;

/// This node's identity, and peer addresses by id as far as they are known. A new node's identity is written
/// to its folder.
pub(crate) fn identify(config: &Config) -> Result<(Identity, BTreeMap<u64, String>), StartError> {
    let folder = &config.data_dir;
    let describe = |error| io_error(format!("reading the identity in {}", folder.display()), error);
    if let Some(identity) = Identity::read(folder).map_err(describe)? {
        check(config, &identity)?;
        return Ok((identity, BTreeMap::new()));
    }
    let (identity, peers) = if config.join.is_empty() { founder(config) } else { join(config)? };
    let describe = |error| io_error(format!("writing the identity in {}", folder.display()), error);
    identity.write(folder).map_err(describe)?;
    Ok((identity, peers))
}

fn check(config: &Config, identity: &Identity) -> Result<(), StartError> {
    let folder = config.data_dir.display();
    if identity.name != config.name {
        let (theirs, ours) = (&identity.name, &config.name);
        return Err(StartError::Identity(format!(
            "{folder} belongs to the node named {theirs:?}, and this one is named {ours:?}: use this node's folder or name"
        )));
    }
    let described = cluster_id(config);
    if identity.founder && !config.cluster.is_empty() && described != identity.cluster {
        return Err(StartError::Identity(format!(
            "{folder} belongs to cluster {:x}, and the settings cluster and cluster_token describe cluster \
             {described:x}: use this node's folder, or the founders' list with which the folder was made",
            identity.cluster
        )));
    }
    // Those of the members to join that answer must be of its cluster. Nobody has to answer.
    for address in &config.join {
        if let Ok(found) = who_is_at(address)
            && found.cluster != identity.cluster
        {
            return Err(StartError::Identity(format!(
                "{folder} belongs to cluster {:x}, and {address}, which the setting join names, to cluster {:x}: use this \
                 node's folder, or delete this one to join the other cluster",
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

fn member_id(config: &Config, name: &str) -> u64 {
    number_of([&format!("{:x}", cluster_id(config)), name])
}

/// The identity of this node as a founder, and the founders' peer addresses by id.
pub(crate) fn founder(config: &Config) -> (Identity, BTreeMap<u64, String>) {
    let founders = config.founders();
    let peers = founders.iter().map(|(name, address)| (member_id(config, name), address.clone())).collect();
    let identity = Identity {
        layout: LAYOUT_VERSION,
        cluster: cluster_id(config),
        id: member_id(config, &config.name),
        name: config.name.clone(),
        founder: true,
    };
    (identity, peers)
}

/// The state with which the cluster begins. The same on each founder.
pub(crate) fn founding(config: &Config) -> Founding {
    let member = |(name, address): (String, String)| system::Member {
        id: member_id(config, &name),
        name,
        peer_addresses: vec![address],
        client_urls: Vec::new(),
        learner: false,
    };
    Founding::of(config.founders().into_iter().map(member).collect())
}

/// Asks the cluster which member this node is: the one with its peer address.
fn join(config: &Config) -> Result<(Identity, BTreeMap<u64, String>), StartError> {
    let own = config.peer_address();
    let mut failures = Vec::new();
    for address in &config.join {
        match ask(address, &own) {
            Ok((cluster, JoinAnswer { member: Some(id), peers })) => {
                let name = config.name.clone();
                return Ok((Identity { layout: LAYOUT_VERSION, cluster, id, name, founder: false }, peers));
            }
            Ok((cluster, _)) => failures.push(format!(
                "{address}: cluster {cluster:x} has no member with the peer address {own}; add it first (quoin cluster add)"
            )),
            Err(error) => failures.push(format!("{address}: {error}")),
        }
    }
    Err(StartError::Identity(format!("cannot join: {}", failures.join("; "))))
}
