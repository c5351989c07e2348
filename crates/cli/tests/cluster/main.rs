//! A cluster of three processes seen from outside: what clients were promised holds while replicas are
//! killed, restarted, left behind, added and removed. One module per face.

mod audit;
mod auth;
mod doctor;
mod file_server;
mod golden;
mod harness;
mod kv;
mod ledger;
mod ledger_cli;
mod playground;
mod route;
mod scrub;
mod snapshot;
mod space;
mod start;
mod subscribe;
mod table;
mod table_peers;
mod table_places;
mod table_switch;
mod tls;
mod wire;
