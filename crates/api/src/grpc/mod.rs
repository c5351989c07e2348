//! The gRPC services: etcd's v3 API in `etcd/`, and `quoin.*.v1`, a folder per face. `inbound.rs` takes
//! requests off a stream, `outbound.rs` runs what answers one.

mod etcd;
mod inbound;
mod kv;
mod ledger;
mod outbound;
mod rights;
pub(crate) mod route;
pub(crate) mod table;

pub(crate) use etcd::API_VERSION;

use crate::answers::Reader;
use crate::auth::Gate;
use crate::ledger::Book;
use crate::life::Life;
use crate::neighbours::Neighbours;
use quoin_engine::Engine;
use quoin_library::Library;
use quoin_proto::etcdserverpb::auth_server::AuthServer;
use quoin_proto::etcdserverpb::cluster_server::ClusterServer;
use quoin_proto::etcdserverpb::kv_server::KvServer;
use quoin_proto::etcdserverpb::lease_server::LeaseServer;
use quoin_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use quoin_proto::etcdserverpb::watch_server::WatchServer;
use quoin_proto::quoin::auth::v1::auth_server::AuthServer as RightsServer;
use quoin_proto::quoin::kv::v1::kv_server::KvServer as QuoinKvServer;
use quoin_proto::quoin::ledger::v1::ledger_server::LedgerServer;
use quoin_proto::quoin::route::encoded::route_server::RouteServer;
use quoin_proto::quoin::table::v1::table_server::TableServer;
use quoin_proto::v3electionpb::election_server::ElectionServer;
use quoin_proto::v3lockpb::lock_server::LockServer;
use std::io;
use std::sync::Arc;
use tonic::service::Routes;

/// Room for gRPC's part of the largest request, as in etcd.
const REQUEST_OVERHEAD_BYTES: usize = 512 << 10;
/// Size of a batch, or of a message of a stream, in requests of the largest size.
const REQUESTS_PER_BATCH: usize = 16;

/// Maximum bytes of a message of etcd's API.
pub(crate) fn request_bytes_max(engine: &Engine) -> usize {
    engine.limits().request_bytes_max + REQUEST_OVERHEAD_BYTES
}

/// Maximum bytes of any message.
pub(crate) fn message_bytes_max(engine: &Engine) -> usize {
    request_bytes_max(engine) * REQUESTS_PER_BATCH
}

/// Whether a path is that of a method: `/package.Service/Method`.
pub(crate) fn is_call(path: &str) -> bool {
    let service = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    service.is_some_and(|(service, _)| service.contains('.'))
}

/// Whether the calls of a method take any number of messages.
pub(crate) fn streams(path: &str) -> bool {
    matches!(
        path,
        "/etcdserverpb.Watch/Watch"
            | "/etcdserverpb.Lease/LeaseKeepAlive"
            | "/quoin.kv.v1.Kv/Stream"
            | "/quoin.ledger.v1.Ledger/Stream"
            | "/quoin.route.v1.Route/PutStream"
            | "/quoin.route.v1.Route/GetStream"
            | "/quoin.route.v1.Route/Subscribe"
            | "/quoin.table.v1.Table/LookupStream"
    )
}

/// Whether the calls of a method have any number of answers.
pub(crate) fn tells_on(path: &str) -> bool {
    matches!(
        path,
        "/etcdserverpb.KV/RangeStream"
            | "/etcdserverpb.Watch/Watch"
            | "/etcdserverpb.Lease/LeaseKeepAlive"
            | "/etcdserverpb.Maintenance/Snapshot"
            | "/v3electionpb.Election/Observe"
            | "/quoin.kv.v1.Kv/Stream"
            | "/quoin.ledger.v1.Ledger/Stream"
            | "/quoin.ledger.v1.Ledger/Events"
            | "/quoin.route.v1.Route/GetStream"
            | "/quoin.route.v1.Route/Watch"
            | "/quoin.route.v1.Route/Subscribe"
            | "/quoin.table.v1.Table/LookupStream"
            | "/quoin.table.v1.Table/Changes"
    )
}

/// All services, except health.
pub(crate) fn routes(
    engine: &Engine,
    gate: &Arc<Gate>,
    library: &Arc<Library>,
    book: &Book,
    life: &Life,
    neighbours: &Neighbours,
) -> io::Result<Routes> {
    let engine = || engine.clone();
    let request_max = request_bytes_max(&engine());
    let batch_max = message_bytes_max(&engine());
    let mut routes = Routes::builder();
    routes
        .add_service(
            KvServer::new(etcd::Kv::new(engine(), Reader::new(&engine()), life.clone()))
                .max_decoding_message_size(request_max),
        )
        .add_service(WatchServer::new(etcd::Watch::new(engine(), life.clone())))
        .add_service(LockServer::new(etcd::Lock::new(engine())))
        .add_service(ElectionServer::new(etcd::Election::new(engine(), life.clone())))
        .add_service(LeaseServer::new(etcd::Lease::new(engine(), life.clone())))
        .add_service(ClusterServer::new(etcd::Cluster::new(engine(), neighbours.clone())))
        .add_service(MaintenanceServer::new(etcd::Maintenance::new(engine(), life.clone())))
        .add_service(AuthServer::new(etcd::Auth::new(Arc::clone(gate))))
        .add_service(RightsServer::new(rights::Auth::new(engine())))
        .add_service(
            QuoinKvServer::new(kv::Kv::new(engine(), life.clone(), neighbours.clone()))
                .max_decoding_message_size(batch_max),
        )
        .add_service(
            RouteServer::new(route::Route::new(engine(), life.clone())).max_decoding_message_size(batch_max),
        )
        .add_service(
            LedgerServer::new(ledger::Ledger::new(book.clone(), life.clone()))
                .max_decoding_message_size(batch_max),
        )
        .add_service(
            TableServer::new(table::Table::new(engine(), Arc::clone(library), life.clone()))
                .max_decoding_message_size(batch_max),
        )
        .add_service(reflection().build_v1().map_err(io::Error::other)?)
        .add_service(reflection().build_v1alpha().map_err(io::Error::other)?);
    Ok(routes.routes())
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(quoin_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Calls `see` with the path of each method in the texts below `folder`, and whether it takes a stream, and answers with
    /// one.
    fn methods(folder: &Path, see: &mut impl FnMut(&str, bool, bool)) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                methods(&path, see);
            } else if path.extension().is_some_and(|extension| extension == "proto") {
                let text = std::fs::read_to_string(&path).unwrap();
                let (mut package, mut service) = ("", "");
                for line in text.lines() {
                    let words: Vec<&str> =
                        line.split([' ', '(', ';', '{']).filter(|word| !word.is_empty()).collect();
                    match words[..] {
                        ["package", name, ..] => package = name,
                        ["service", name, ..] => service = name,
                        ["rpc", name, first, ..] => {
                            let answers = line.replace(' ', "").contains("returns(stream");
                            see(&format!("/{package}.{service}/{name}"), first == "stream", answers);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    #[test]
    fn the_methods_that_take_streams_are_known() {
        let (mut streaming, mut telling) = (0, 0);
        let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
        methods(&proto, &mut |path, takes, tells| {
            assert_eq!((streams(path), tells_on(path)), (takes, tells), "{path}");
            streaming += usize::from(takes);
            telling += usize::from(tells);
        });
        assert_eq!((streaming, telling), (8, 13));
    }
}
