//! What each call needs. Tests compare the tables with the registries of calls, so that none is forgotten; what is in
//! no table needs everything.

use quoin_core::auth::rights::{ADMIN, HEARTBEAT, READ, WRITE};
use quoin_core::auth::{Access, Part};

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: not even to say who asks.
    Nothing,
    /// To be a user.
    User,
    /// Rights to the keys that it names, which its handler checks; and to be a user.
    Keys,
    /// Rights in a part; of tables in those that it names, which its handler checks.
    Part(Part, u32),
    /// The role `root`.
    Root,
}

impl Need {
    /// Whether this much is enough, as far as can be said before the request is read.
    pub(crate) fn is_met_by(self, access: &Access) -> bool {
        match self {
            Self::Nothing | Self::User | Self::Keys => true,
            Self::Part(part, rights) => access.has_some(part, rights),
            Self::Root => access.is_root(),
        }
    }
}

const TABLE: Part = Part::Table;
const LEDGER: Part = Part::Ledger;
const ROUTE: Part = Part::Route;
const CLUSTER: Part = Part::Cluster;

/// Calls of gRPC, by the paths of their methods. Those of the services of health and reflection need nothing.
pub(crate) static CALLS: &[(&str, Need)] = &[
    ("/etcdserverpb.KV/Range", Need::Keys),
    ("/etcdserverpb.KV/RangeStream", Need::Keys),
    ("/etcdserverpb.KV/Put", Need::Keys),
    ("/etcdserverpb.KV/DeleteRange", Need::Keys),
    ("/etcdserverpb.KV/Txn", Need::Keys),
    ("/etcdserverpb.KV/Compact", Need::Part(CLUSTER, ADMIN)),
    ("/etcdserverpb.Watch/Watch", Need::Keys),
    ("/etcdserverpb.Lease/LeaseGrant", Need::User),
    ("/etcdserverpb.Lease/LeaseRevoke", Need::Keys),
    ("/etcdserverpb.Lease/LeaseKeepAlive", Need::User),
    ("/etcdserverpb.Lease/LeaseTimeToLive", Need::Keys),
    ("/etcdserverpb.Lease/LeaseLeases", Need::User),
    ("/etcdserverpb.Cluster/MemberAdd", Need::Part(CLUSTER, ADMIN)),
    ("/etcdserverpb.Cluster/MemberRemove", Need::Part(CLUSTER, ADMIN)),
    ("/etcdserverpb.Cluster/MemberUpdate", Need::Part(CLUSTER, ADMIN)),
    ("/etcdserverpb.Cluster/MemberList", Need::User),
    ("/etcdserverpb.Cluster/MemberPromote", Need::Part(CLUSTER, ADMIN)),
    ("/etcdserverpb.Maintenance/Alarm", Need::Part(CLUSTER, ADMIN)),
    ("/etcdserverpb.Maintenance/Status", Need::Part(CLUSTER, READ)),
    ("/etcdserverpb.Maintenance/Defragment", Need::Part(CLUSTER, ADMIN)),
    ("/etcdserverpb.Maintenance/Hash", Need::Part(CLUSTER, READ)),
    ("/etcdserverpb.Maintenance/HashKV", Need::Part(CLUSTER, READ)),
    // It has everything, hashes of passwords too.
    ("/etcdserverpb.Maintenance/Snapshot", Need::Root),
    ("/etcdserverpb.Maintenance/MoveLeader", Need::Part(CLUSTER, ADMIN)),
    ("/etcdserverpb.Maintenance/Downgrade", Need::Part(CLUSTER, ADMIN)),
    ("/etcdserverpb.Auth/AuthEnable", Need::Root),
    ("/etcdserverpb.Auth/AuthDisable", Need::Root),
    ("/etcdserverpb.Auth/AuthStatus", Need::Root),
    ("/etcdserverpb.Auth/Authenticate", Need::Nothing),
    ("/etcdserverpb.Auth/UserAdd", Need::Root),
    // Users may look at themselves and their roles.
    ("/etcdserverpb.Auth/UserGet", Need::User),
    ("/etcdserverpb.Auth/UserList", Need::Root),
    ("/etcdserverpb.Auth/UserDelete", Need::Root),
    ("/etcdserverpb.Auth/UserChangePassword", Need::Root),
    ("/etcdserverpb.Auth/UserGrantRole", Need::Root),
    ("/etcdserverpb.Auth/UserRevokeRole", Need::Root),
    ("/etcdserverpb.Auth/RoleAdd", Need::Root),
    ("/etcdserverpb.Auth/RoleGet", Need::User),
    ("/etcdserverpb.Auth/RoleList", Need::Root),
    ("/etcdserverpb.Auth/RoleDelete", Need::Root),
    ("/etcdserverpb.Auth/RoleGrantPermission", Need::Root),
    ("/etcdserverpb.Auth/RoleRevokePermission", Need::Root),
    ("/quoin.auth.v1.Auth/Grant", Need::Root),
    ("/quoin.auth.v1.Auth/Revoke", Need::Root),
    ("/quoin.auth.v1.Auth/Role", Need::User),
    ("/v3lockpb.Lock/Lock", Need::Keys),
    ("/v3lockpb.Lock/Unlock", Need::Keys),
    ("/v3electionpb.Election/Campaign", Need::Keys),
    ("/v3electionpb.Election/Proclaim", Need::Keys),
    ("/v3electionpb.Election/Leader", Need::Keys),
    ("/v3electionpb.Election/Observe", Need::Keys),
    ("/v3electionpb.Election/Resign", Need::Keys),
    ("/quoin.kv.v1.Kv/Put", Need::Keys),
    ("/quoin.kv.v1.Kv/Delete", Need::Keys),
    ("/quoin.kv.v1.Kv/Get", Need::Keys),
    ("/quoin.kv.v1.Kv/Floor", Need::Keys),
    ("/quoin.kv.v1.Kv/Batch", Need::Keys),
    ("/quoin.kv.v1.Kv/Stream", Need::Keys),
    ("/quoin.kv.v1.Kv/Replicas", Need::Part(CLUSTER, READ)),
    ("/quoin.table.v1.Table/Lookup", Need::Part(TABLE, READ)),
    ("/quoin.table.v1.Table/LookupStream", Need::Part(TABLE, READ)),
    ("/quoin.table.v1.Table/Publish", Need::Part(TABLE, ADMIN)),
    ("/quoin.table.v1.Table/Activate", Need::Part(TABLE, ADMIN)),
    ("/quoin.table.v1.Table/Rollback", Need::Part(TABLE, ADMIN)),
    ("/quoin.table.v1.Table/Drop", Need::Part(TABLE, ADMIN)),
    ("/quoin.table.v1.Table/List", Need::Part(TABLE, READ)),
    ("/quoin.table.v1.Table/Write", Need::Part(TABLE, WRITE)),
    ("/quoin.table.v1.Table/Changes", Need::Part(TABLE, READ)),
    ("/quoin.ledger.v1.Ledger/CreateCurrency", Need::Part(LEDGER, ADMIN)),
    ("/quoin.ledger.v1.Ledger/CreateAccounts", Need::Part(LEDGER, WRITE)),
    // It freezes and closes them.
    ("/quoin.ledger.v1.Ledger/UpdateAccount", Need::Part(LEDGER, ADMIN)),
    ("/quoin.ledger.v1.Ledger/GetAccount", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/ListAccounts", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/CreateTransfers", Need::Part(LEDGER, WRITE)),
    ("/quoin.ledger.v1.Ledger/Stream", Need::Part(LEDGER, WRITE)),
    ("/quoin.ledger.v1.Ledger/GetTransfer", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/QueryTransfers", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/QueryAccounts", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/SumBalances", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/GetIndexes", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/SetIndexes", Need::Part(LEDGER, ADMIN)),
    ("/quoin.ledger.v1.Ledger/IndexRows", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/LookupTransfers", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/LookupAccounts", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/Statement", Need::Part(LEDGER, READ)),
    ("/quoin.ledger.v1.Ledger/Events", Need::Part(LEDGER, READ)),
    ("/quoin.route.v1.Route/Put", Need::Part(ROUTE, WRITE)),
    ("/quoin.route.v1.Route/Write", Need::Part(ROUTE, WRITE)),
    ("/quoin.route.v1.Route/PutStream", Need::Part(ROUTE, WRITE)),
    ("/quoin.route.v1.Route/Delete", Need::Part(ROUTE, WRITE)),
    ("/quoin.route.v1.Route/Get", Need::Part(ROUTE, READ)),
    ("/quoin.route.v1.Route/GetStream", Need::Part(ROUTE, READ)),
    ("/quoin.route.v1.Route/List", Need::Part(ROUTE, READ)),
    ("/quoin.route.v1.Route/GroupRevisions", Need::Part(ROUTE, READ)),
    ("/quoin.route.v1.Route/Watch", Need::Part(ROUTE, READ)),
    ("/quoin.route.v1.Route/Subscribe", Need::Part(ROUTE, READ)),
    ("/quoin.route.v1.Route/PutObject", Need::Part(ROUTE, WRITE)),
    ("/quoin.route.v1.Route/GetObject", Need::Part(ROUTE, READ)),
    ("/quoin.route.v1.Route/ListObjects", Need::Part(ROUTE, READ)),
    ("/quoin.route.v1.Route/DeleteObject", Need::Part(ROUTE, WRITE)),
    ("/quoin.route.v1.Route/Heartbeat", Need::Part(ROUTE, HEARTBEAT)),
    ("/quoin.route.v1.Route/Nodes", Need::Part(ROUTE, READ)),
];

/// The rights by which one administers.
pub(crate) const ADMINISTERS: u32 = ADMIN;

/// What only `root` may see, and changes nothing: no administrative act.
const LOOKS: &[&str] =
    &["/etcdserverpb.Auth/AuthStatus", "/etcdserverpb.Auth/UserList", "/etcdserverpb.Auth/RoleList"];

/// Whether a call is an administrative act.
pub(crate) fn is_administrative(call: &str, need: Need) -> bool {
    let known = CALLS.iter().any(|(known, _)| *known == call) && !LOOKS.contains(&call);
    match need {
        Need::Root => known,
        Need::Part(_, rights) => known && rights & ADMINISTERS != 0,
        Need::Nothing | Need::User | Need::Keys => false,
    }
}

/// What a call of gRPC needs.
pub(crate) fn of_call(path: &str) -> Need {
    let open = ["/grpc.health.v1.Health/", "/grpc.reflection."];
    if open.iter().any(|service| path.starts_with(service)) {
        return Need::Nothing;
    }
    CALLS.iter().find(|(call, _)| *call == path).map_or(Need::Root, |(_, need)| *need)
}

/// What a page of HTTP needs: `path` as in the OpenAPI document, or of an operators' page.
pub(crate) fn of_page(method: &str, path: &str) -> Need {
    match path {
        // Whether the process lives and serves, and its version: what probes ask that have no password.
        "/livez" | "/readyz" | "/health" | "/version" => Need::Nothing,
        // The document and its reader, from files in the binary.
        "/v1/openapi.json" => Need::Nothing,
        _ if path == "/docs" || path.starts_with("/docs/") => Need::Nothing,
        "/metrics" => Need::Part(Part::Metrics, READ),
        _ => {
            let method = if method == "HEAD" { "GET" } else { method };
            let page = PAGES.iter().find(|page| (page.0, page.1) == (method, path));
            page.map_or(Need::Root, |page| Need::Part(page.2, page.3))
        }
    }
}

/// The pages of the faces.
pub(crate) static PAGES: &[(&str, &str, Part, u32)] = &[
    ("GET", "/v1/accounts", LEDGER, READ),
    ("POST", "/v1/accounts", LEDGER, WRITE),
    ("POST", "/v1/accounts/lookup", LEDGER, READ),
    ("POST", "/v1/accounts/batch", LEDGER, WRITE),
    ("GET", "/v1/accounts/{account}", LEDGER, READ),
    // It freezes and closes it.
    ("PATCH", "/v1/accounts/{account}", LEDGER, ADMIN),
    ("GET", "/v1/accounts/{account}/statement", LEDGER, READ),
    ("GET", "/v1/indexes", LEDGER, READ),
    ("PUT", "/v1/indexes", LEDGER, ADMIN),
    ("GET", "/v1/balances", LEDGER, READ),
    ("GET", "/v1/currencies/{code}", LEDGER, READ),
    ("PUT", "/v1/currencies/{code}", LEDGER, ADMIN),
    ("GET", "/v1/transfers", LEDGER, READ),
    ("POST", "/v1/transfers", LEDGER, WRITE),
    ("POST", "/v1/transfers/lookup", LEDGER, READ),
    ("POST", "/v1/transfers/batch", LEDGER, WRITE),
    ("GET", "/v1/transfers/{id}", LEDGER, READ),
    ("POST", "/v1/transfers/{id}/post", LEDGER, WRITE),
    ("POST", "/v1/transfers/{id}/void", LEDGER, WRITE),
    ("POST", "/v1/transfers/{id}/revert", LEDGER, WRITE),
    ("POST", "/v1/transactions", LEDGER, WRITE),
    ("POST", "/v1/deposits", LEDGER, WRITE),
    ("POST", "/v1/withdrawals", LEDGER, WRITE),
    ("GET", "/v1/events", LEDGER, READ),
    // The paths of rt-balance.
    ("POST", "/account", LEDGER, WRITE),
    ("GET", "/account/{id}", LEDGER, READ),
    ("POST", "/account:transfer", LEDGER, WRITE),
    ("POST", "/account:transfer/message", LEDGER, WRITE),
    ("POST", "/account:transfer/async", LEDGER, WRITE),
    ("POST", "/account:debit/{id}", LEDGER, WRITE),
    ("POST", "/account:credit/{id}", LEDGER, WRITE),
    ("POST", "/transaction", LEDGER, WRITE),
    ("GET", "/v1/rules", ROUTE, READ),
    ("DELETE", "/v1/rules", ROUTE, WRITE),
    ("GET", "/v1/rules/{vni}/{ip}", ROUTE, READ),
    ("PUT", "/v1/rules/{vni}/{ip}", ROUTE, WRITE),
    ("DELETE", "/v1/rules/{vni}/{ip}", ROUTE, WRITE),
    ("POST", "/v1/rules/batch", ROUTE, WRITE),
    ("POST", "/v1/rules/lookup", ROUTE, READ),
    ("GET", "/v1/rules/events", ROUTE, READ),
    ("GET", "/v1/vpcs", ROUTE, READ),
    ("GET", "/v1/vpcs/{name}", ROUTE, READ),
    ("PUT", "/v1/vpcs/{name}", ROUTE, WRITE),
    ("DELETE", "/v1/vpcs/{name}", ROUTE, WRITE),
    ("GET", "/v1/gateway-clusters", ROUTE, READ),
    ("GET", "/v1/gateway-clusters/{name}", ROUTE, READ),
    ("PUT", "/v1/gateway-clusters/{name}", ROUTE, WRITE),
    ("DELETE", "/v1/gateway-clusters/{name}", ROUTE, WRITE),
    ("GET", "/v1/nodes", ROUTE, READ),
    ("GET", "/v1/nodes/{name}", ROUTE, READ),
    ("PUT", "/v1/nodes/{name}", ROUTE, WRITE),
    ("DELETE", "/v1/nodes/{name}", ROUTE, WRITE),
    ("POST", "/v1/nodes/{name}/heartbeat", ROUTE, HEARTBEAT),
];
