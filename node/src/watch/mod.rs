//! stub
#![allow(missing_docs)]
use quoin_core::*;
use std::sync::Arc;
pub struct Hub;
#[derive(Default)]
pub struct Options;
pub trait Source: Send + Sync {}
impl Hub {
    pub fn new(_s: Arc<dyn Source>, _o: Options) -> Arc<Hub> {
        unimplemented!()
    }
    pub fn publish(&self, _e: Vec<Event>, _r: Revision) {}
    pub fn reset(&self, _r: Revision) {}
    pub fn stop(&self) {}
}
impl Source for crate::engine::Shared {}
