//! Versions: publishing, switching, dropping, listing; and changes over them.

use super::operation::{check_changes, operation};
use crate::audit::about;
use crate::auth::check_table;
use crate::commands::{check_space, off_the_hot_path};
use crate::consistency;
use crate::error::Error;
use quoin_core::auth::table_rights::{ACTIVATE, CHANGE, LOOKUP, PUBLISH};
use quoin_core::system::Member;
use quoin_core::table::{
    Activate, Drop, Operation, Publish, Rollback, Shape, TableState, Upsert, Version, Write,
};
use quoin_engine::Engine;
use quoin_library::{Library, Source, SourceError};
use quoin_proto::quoin::table::v1 as pb;
use quoin_table::Folds;
use quoin_table::manifest::{FOLDS, MANIFEST, Manifest, check_name};
use std::path::Path;
use std::sync::Arc;

pub(super) async fn publish(
    engine: &Engine,
    library: &Library,
    request: pb::PublishRequest,
) -> Result<pb::VersionResponse, Error> {
    check_space(engine)?;
    let pb::PublishRequest { table, location, folds_revision, new_shape, keep } = request;
    if !table.is_empty() {
        about("table", &table);
    }
    about("location", without_credentials(&location));
    if !table.is_empty() {
        check_table(engine, &table, PUBLISH)?;
    }
    let manifest = manifest_at(library, &location).await?;
    let name = if table.is_empty() { manifest.name.clone() } else { table };
    check_name(&name).map_err(Error::invalid)?;
    check_table(engine, &name, PUBLISH)?;
    let folds = if folds_revision > 0 { folds_revision } else { folded_by(engine, &manifest, &name)? };
    let publish = Publish {
        name: name.clone(),
        id: manifest.id.clone(),
        over: manifest.over.clone().unwrap_or_default(),
        location,
        shape: Some(shape_of(&manifest)),
        manifest: manifest.to_json().into(),
        folds,
        new_shape,
        keep,
    };
    done(engine, name, Operation::Publish(publish)).await
}

/// A URL may have a user and a password, or a signature behind its `?`.
fn without_credentials(location: &str) -> String {
    let plain = location.split(['?', '#']).next().unwrap_or_default();
    match plain.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            format!("{scheme}://{host}/{path}")
        }
        None => plain.to_owned(),
    }
}

async fn manifest_at(library: &Library, location: &str) -> Result<Manifest, Error> {
    let source = Source::open(location, library.settings()).await.map_err(source_failed)?;
    let text = source.small(MANIFEST).await.map_err(source_failed)?;
    let name = format!("{}/{MANIFEST}", location.trim_end_matches('/'));
    off_the_hot_path(move || Manifest::parse(&text, Path::new(&name))).await?.map_err(Error::invalid)
}

fn source_failed(failed: SourceError) -> Error {
    if failed.is_transient() { Error::unavailable(failed) } else { Error::invalid(failed) }
}

/// The revision up to which the files hold the changes of table `name`, if the manifest says so. Notes of other tables
/// and clusters mean nothing here: without one the changes stay over the files, which is never wrong.
fn folded_by(engine: &Engine, manifest: &Manifest, name: &str) -> Result<u64, Error> {
    let Some(folds) = manifest.metadata.get(FOLDS).and_then(|text| text.parse::<Folds>().ok()) else {
        return Ok(0);
    };
    let ours = folds.are_of(name, engine.cluster(), &disks(&engine.members()?));
    Ok(if ours { folds.revision } else { 0 })
}

/// The disks of the members that have one.
pub(super) fn disks(members: &[Member]) -> Vec<u64> {
    members.iter().map(|member| member.disk).filter(|disk| *disk != 0).collect()
}

fn shape_of(manifest: &Manifest) -> Shape {
    let codec = manifest.schema.codec;
    let dimension = codec.dimension().map_or_else(String::new, |dimension| format!(" {dimension}"));
    Shape {
        shards: manifest.shards,
        width_plus_1: manifest.schema.width().map_or(0, |width| width + 1),
        codec: format!("{}{dimension}", codec.name()),
    }
}

async fn done(engine: &Engine, table: String, what: Operation) -> Result<pb::VersionResponse, Error> {
    about("table", &table);
    let (version, revision) = operation(engine, what).await?;
    Ok(pb::VersionResponse { version, revision, table })
}

pub(super) async fn activate(
    engine: &Engine,
    request: pb::ActivateRequest,
) -> Result<pb::VersionResponse, Error> {
    let pb::ActivateRequest { table: name, version, without_waiting } = request;
    about("table", &name);
    about("version", version);
    check_table(engine, &name, ACTIVATE)?;
    done(engine, name.clone(), Operation::Activate(Activate { name, version, without_waiting })).await
}

pub(super) async fn rollback(
    engine: &Engine,
    request: pb::RollbackRequest,
) -> Result<pb::VersionResponse, Error> {
    let name = request.table;
    about("table", &name);
    check_table(engine, &name, ACTIVATE)?;
    done(engine, name.clone(), Operation::Rollback(Rollback { name })).await
}

pub(super) async fn forget(engine: &Engine, request: pb::DropRequest) -> Result<pb::VersionResponse, Error> {
    let pb::DropRequest { table: name, version } = request;
    about("table", &name);
    about("version", version);
    check_table(engine, &name, PUBLISH)?;
    done(engine, name.clone(), Operation::Drop(Drop { name, version })).await
}

pub(super) async fn write(
    engine: &Engine,
    library: &Library,
    request: pb::WriteRequest,
) -> Result<pb::WriteResponse, Error> {
    let pb::WriteRequest { table: name, keys, values, deletes } = request;
    about("table", &name);
    check_table(engine, &name, CHANGE)?;
    // A deletion is a change like another: it takes room over the files.
    check_space(engine)?;
    if keys.len() != values.len() {
        return Err(Error::invalid(format!(
            "{} keys and {} values; give one value per key",
            keys.len(),
            values.len()
        )));
    }
    let (changes, max) = (keys.len() + deletes.len(), library.settings().keys_max);
    if changes > max {
        return Err(Error::invalid(format!("{changes} keys in one request, at most {max} (table.keys_max)")));
    }
    let upserts = keys.into_iter().zip(values).map(|(key, value)| Upsert { key, value }).collect();
    let write = Write { name, upserts, deletes };
    check_changes(engine, library.settings(), &write)?;
    let (version, revision) = operation(engine, Operation::Write(write)).await?;
    Ok(pb::WriteResponse { version, revision })
}

pub(super) async fn list(
    engine: &Engine,
    library: &Arc<Library>,
    request: &pb::ListRequest,
) -> Result<pb::ListResponse, Error> {
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let members = engine.members()?;
    let wanted = |name: &str| {
        (request.table.is_empty() || request.table == name) && check_table(engine, name, LOOKUP).is_ok()
    };
    // Manifests are parsed once the lock is given back, which the apply thread needs.
    let listed: Vec<Listed> = {
        let look = view.memory().tables.look();
        look.tables().filter(|(name, _)| wanted(name)).map(|(name, state)| listed(name, state)).collect()
    };
    let library = Arc::clone(library);
    let infos = move || listed.into_iter().map(|listed| info(&library, &members, listed)).collect();
    Ok(pb::ListResponse { tables: off_the_hot_path(infos).await? })
}

/// A table as it was at one moment.
type Listed = (pb::TableInfo, Vec<Arc<Version>>);

fn listed(name: &str, state: &TableState) -> Listed {
    let info = pb::TableInfo {
        name: name.into(),
        active: state.table.active,
        previous: state.table.previous.clone(),
        changed_keys: state.changed() as u64,
        keep: state.table.keep,
        versions: Vec::new(),
    };
    (info, state.versions.values().cloned().collect())
}

fn info(library: &Library, members: &[Member], (mut info, versions): Listed) -> pb::TableInfo {
    let of_version = |version: &Arc<Version>| version_info(library, members, &info.name, version);
    info.versions = versions.iter().map(of_version).collect();
    info
}

fn version_info(library: &Library, members: &[Member], name: &str, version: &Version) -> pb::VersionInfo {
    let label = |id: u64| {
        members.iter().find(|member| member.id == id).map_or_else(|| format!("{id:016x}"), Member::label)
    };
    let failed = |failure: &quoin_core::table::Failure| pb::NotReady {
        member: failure.member,
        reason: failure.reason.clone(),
        transient: failure.transient,
        name: label(failure.member),
    };
    let is_member = |id: &u64| members.iter().any(|member| member.id == *id);
    let said =
        |id: u64| version.ready.contains(&id) || version.failed.iter().any(|failure| failure.member == id);
    let waiting = members.iter().filter(|member| !member.learner && !said(member.id)).map(Member::label);
    let mut info = pb::VersionInfo {
        version: version.number,
        id: version.id.clone(),
        below: version.below,
        location: version.location.clone(),
        folds_revision: version.folds,
        // Who has left may have reported before.
        ready_members: version.ready.iter().copied().filter(is_member).collect(),
        failed_members: version
            .failed
            .iter()
            .filter(|failure| is_member(&failure.member))
            .map(failed)
            .collect(),
        loaded_here: library.get(name, version).is_some(),
        waiting: waiting.collect(),
        ..Default::default()
    };
    // Publishing has parsed it before; a manifest of a later version of this program may not parse.
    if let Ok(manifest) = Manifest::parse(&version.manifest, Path::new(MANIFEST)) {
        info.keys = manifest.count;
        info.deleted = manifest.deleted;
        info.bytes = manifest.bytes();
        info.shards = manifest.shards;
        info.values = manifest.schema.describe();
        info.metadata = manifest.metadata.into_iter().collect();
    }
    info
}
