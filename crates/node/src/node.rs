//! One node: its data folder, its replica, its ports. [`Node::start`] starts the parts in the order in which
//! they need each other, and [`Node::stop`] stops them in the opposite order.

use crate::addresses;
use crate::audit;
use crate::config::Config;
use crate::error::{StartError, io_error};
use crate::force::force;
use crate::{membership, tls};
use quoin_api as api;
use quoin_consensus::log::RealDisk;
use quoin_engine::{Engine, Opened, Running};
use quoin_library::{Keeper, Library};
use quoin_tls::Keys;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

/// A running node.
pub struct Node {
    replica: Running,
    keeper: Keeper,
    servers: api::Servers,
    /// Dropped last: what the servers did while they stopped is recorded.
    _audit: Option<quoin_audit::Writer>,
}

impl Node {
    /// Starts a node. When this returns it serves clients, though it may not have found a leader yet. Until then
    /// connections wait: it applies what was committed before the start first.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let config = if config.force_new_cluster { force(config).await? } else { config };
        let (keys, peer_keys) = (config.tls.for_clients()?, config.tls.for_peers()?);
        // Sockets first: a port in use is the most common mistake, and cheap to find.
        let peer_listener = listen(config.listen_peer, "peer")?;
        let client_listener = listen(config.listen_client, "client")?;
        let http_listener = listen(config.listen_http, "http")?;
        let resp_listener = listen(config.listen_resp, "resp")?;
        let paths = paths(&config)?;
        let (library, tables) = (Library::new(config.tables()), config.data_dir.join("tables"));
        let (name, clients) = (config.name.clone(), config.listen_client);
        let (auth, kept) = (config.auth.settings(), config.clone());
        let dialling = peer_keys.clone();
        let (opened, peers) = tokio::task::spawn_blocking(move || open(&config, dialling.as_deref()))
            .await
            .map_err(|error| io_error("opening the data folder", io::Error::other(error)))??;
        let replica = opened
            .start_with(peer_listener, peers, peer_keys.clone())
            .map_err(|error| io_error("starting the replica's threads", error))?;
        if let Err(reason) = replica.replayed().await {
            let _ = tokio::task::spawn_blocking(|| replica.stop()).await;
            return Err(StartError::Replay(reason));
        }
        let (engine, library) = (replica.engine(), Arc::new(library));
        let keeper =
            Keeper::start(engine.clone(), Arc::clone(&library), tables, tokio::runtime::Handle::current())
                .map_err(|error| io_error("starting threads", error))?;
        if let Some(keys) = &peer_keys {
            tls::watch(keys, engine.metrics(), "peers")
                .map_err(|error| io_error("starting threads", error))?;
        }
        if let Some(keys) = &keys {
            tls::watch(keys, engine.metrics(), "clients")
                .map_err(|error| io_error("starting threads", error))?;
        }
        let (audit, writer) = audit::open(&kept, engine.metrics())?.unzip();
        let ports = api::Ports {
            clients: client_listener,
            operators: http_listener,
            redis: resp_listener,
            keys,
            paths,
            auth,
            audit,
        };
        let servers =
            api::serve(engine.clone(), library, ports).map_err(|error| io_error("serving clients", error))?;
        tracing::info!(
            name,
            member = format!("{:016x}", engine.id()),
            cluster = format!("{:016x}", engine.cluster()),
            %clients,
            "started"
        );
        Ok(Self { replica, keeper, servers, _audit: writer })
    }

    /// A handle to its replica.
    pub fn engine(&self) -> Engine {
        self.replica.engine()
    }

    /// Waits until the node stops by itself; returns the reason.
    pub async fn failed(&self) -> String {
        self.replica.failed().await
    }

    /// Stops the node: hands leadership over, closes clients' connections, writes the store out.
    pub async fn stop(self) {
        self.engine().hand_over().await;
        let Self { replica, keeper, servers, _audit: audit } = self;
        servers.stop().await;
        let ended = tokio::task::spawn_blocking(move || {
            drop(audit);
            keeper.stop();
            replica.stop();
        });
        if ended.await.is_err() {
            tracing::error!("stopping panicked");
        }
    }
}

fn listen(address: SocketAddr, what: &str) -> Result<TcpListener, StartError> {
    let what = format!("listening on {address} ({what}); is another process using the port?");
    TcpListener::bind(address).map_err(|error| io_error(what, error))
}

/// The sockets of the file system.
fn paths(config: &Config) -> Result<api::Paths, StartError> {
    let mode = config.unix_mode().expect("the settings were checked");
    let bind = |text: &str| {
        let failed = |error| io_error(format!("listening on {text}"), error);
        addresses::unix_path(text).map(|path| api::UnixSocket::bind(path, mode).map_err(failed)).transpose()
    };
    Ok(api::Paths {
        clients: bind(&config.listen_client_unix)?,
        operators: bind(&config.listen_http_unix)?,
        redis: bind(&config.listen_resp_unix)?,
    })
}

/// Opens the replica in the data folder, or founds one in an empty folder. Returns it with the peer addresses
/// that it was told.
pub(crate) fn open(
    config: &Config,
    keys: Option<&Keys>,
) -> Result<(Opened, BTreeMap<u64, String>), StartError> {
    let folder = &config.data_dir;
    create_durably(folder).map_err(|error| io_error(format!("creating {}", folder.display()), error))?;
    // Takes the folder's lock, before anything is read or written.
    let disk = RealDisk::open(&folder.join("log"))
        .map_err(|error| io_error(format!("opening {}", folder.join("log").display()), error))?;
    let (identity, peers) = membership::identify(config, keys)?;
    let founding = identity.founder.then(|| membership::founding(config, identity.disk));
    let owner = membership::owner(&identity);
    let settled = owner.settled;
    let mut opened =
        Opened::open(owner, folder, Arc::new(disk), config.engine_settings(), founding.as_ref())?;
    if !settled {
        opened = opened
            .settle_with(identity.founder, membership::settle(config, identity))
            .map_err(|error| io_error(format!("writing the identity in {}", folder.display()), error))?;
    }
    Ok((opened, peers))
}

/// Creates a folder, and those above it, so that it is still there after a power failure.
fn create_durably(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_durably(parent)?;
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => File::open(parent)?.sync_all(),
    }
}
