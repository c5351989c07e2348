//! The wire: etcd's v3 API and `quoin.*.v1`, generated from the texts in `etcd/` and `quoin/`.
//!
//! **Invariant.** Packages, services, messages, fields and numbers under `etcd/` are etcd's, so that every client of etcd
//! works; under `quoin/`, fields are only ever added. Byte strings are [`bytes::Bytes`]: decoding a message shares the
//! received buffer instead of copying it.
//!
//! What is deliberately absent: any meaning. The node's `api` decides what a message asks for.

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

/// The requests, answers and services of etcd's API.
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

/// Quoin's own services, one module per face.
pub mod quoin {
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

        /// The server of version 1 with its largest answers as bytes, see [`crate::Encoded`].
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

mod encoded;
pub use encoded::Encoded;

/// All of the above as an encoded `google.protobuf.FileDescriptorSet`, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("descriptors");
