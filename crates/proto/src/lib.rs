//! The wire: etcd's v3 API and `quoin.*.v1`, generated from the `.proto` files in `etcd/` and `quoin/`.
//!
//! Packages, services, messages, fields and numbers in `etcd/` are etcd's, so that every etcd client works;
//! the test `tests/wire.rs` pins them. Byte strings are [`bytes::Bytes`]: a decoded message shares the
//! received buffer instead of copying it.
//!
//! Requests are decoded within a bound on memory ([`Codec`]).
//!
//! Deliberately absent: meaning. The crate `api` decides what a message asks for.

/// Keys, values and events of etcd's API.
pub mod mvccpb {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("mvccpb");
}

/// Users and roles of etcd's API.
pub mod authpb {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("authpb");
}

/// Requests, responses and services of etcd's API.
pub mod etcdserverpb {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("etcdserverpb");
}

/// etcd's lock service.
pub mod v3lockpb {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("v3lockpb");
}

/// etcd's election service.
pub mod v3electionpb {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("v3electionpb");
}

/// The metadata by which a caller of `Maintenance.Snapshot` asks for a format, and the value that asks for Quoin's; without
/// it the answer is etcd's.
pub const SNAPSHOT_FORMAT: (&str, &str) = ("quoin-snapshot-format", "quoin");

/// Quoin's own services, one module per face.
pub mod quoin {
    /// Shared by all faces, version 1.
    pub mod v1 {
        #![allow(missing_docs, unreachable_pub, clippy::all)]
        tonic::include_proto!("quoin.v1");

        impl From<Local> for Consistency {
            fn from(local: Local) -> Self {
                Self { level: Some(consistency::Level::Local(local)) }
            }
        }
    }

    /// Rights.
    pub mod auth {
        /// Version 1.
        pub mod v1 {
            #![allow(missing_docs, unreachable_pub, clippy::all)]
            tonic::include_proto!("quoin.auth.v1");
        }
    }

    /// The kv face.
    pub mod kv {
        /// Version 1.
        pub mod v1 {
            #![allow(missing_docs, unreachable_pub, clippy::all)]
            tonic::include_proto!("quoin.kv.v1");
        }
    }

    /// The route face.
    pub mod route {
        /// Version 1.
        pub mod v1 {
            #![allow(missing_docs, unreachable_pub, clippy::all)]
            tonic::include_proto!("quoin.route.v1");
        }

        /// The server of version 1 with its largest responses as bytes, see [`crate::Encoded`].
        pub mod encoded {
            #![allow(missing_docs, unreachable_pub, clippy::all)]
            include!(concat!(env!("OUT_DIR"), "/encoded/quoin.route.v1.rs"));
        }
    }

    /// The table face.
    pub mod table {
        /// Version 1.
        pub mod v1 {
            #![allow(missing_docs, unreachable_pub, clippy::all)]
            tonic::include_proto!("quoin.table.v1");
        }
    }

    /// The ledger face.
    pub mod ledger {
        /// Version 1.
        pub mod v1 {
            #![allow(missing_docs, unreachable_pub, clippy::all)]
            tonic::include_proto!("quoin.ledger.v1");
        }
    }
}

mod bounded;
#[path = "../../core/src/charge.rs"]
mod charge;
mod encoded;
pub use bounded::{BoundedDecoder, Codec};
pub use encoded::Encoded;

/// All of the above as an encoded `google.protobuf.FileDescriptorSet` without comments, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("descriptors");
