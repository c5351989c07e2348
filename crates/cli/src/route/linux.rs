//! Rules in Linux's tables, through netlink. Each rule becomes a permanent neighbour entry on its network's
//! VXLAN device, as `ip neigh` shows it. If it names a host, its MAC address gets a forwarding entry to that
//! host, as `bridge fdb` shows it.
//!
//! Rules without a MAC address, and rules of networks without a device, are skipped; their number is logged.

use super::copy::Change;
use anyhow::Result;

/// Stands for the VNI in a device's name.
const VNI_IN_NAME: &str = "{vni}";

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::Linux;
#[cfg(target_os = "linux")]
pub(super) use there::Linux;

#[cfg(target_os = "linux")]
mod there {
    use super::{Change, Result, VNI_IN_NAME};
    use anyhow::{Context, ensure};
    use futures_util::TryStreamExt;
    use quoin_proto::quoin::route::v1 as pb;
    use rtnetlink::packet_route::AddressFamily;
    use rtnetlink::packet_route::neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    };
    use rtnetlink::{Error, Handle};
    use std::collections::HashMap;
    use std::net::IpAddr;

    /// A connection to the kernel.
    pub(in super::super) struct Linux {
        handle: Handle,
        device: String,
        /// Index of a network's device; `None` where there is none.
        devices: HashMap<u32, Option<u32>>,
    }

    impl Linux {
        /// Opens the connection. `device` is the name of the devices, where `{vni}` stands for the network.
        ///
        /// # Errors
        /// The name lacks `{vni}`, or the kernel refuses.
        pub(in super::super) fn open(device: &str) -> Result<Self> {
            ensure!(
                device.contains(VNI_IN_NAME),
                "--device {device:?} must contain {VNI_IN_NAME}, like \"vxlan{VNI_IN_NAME}\""
            );
            let (connection, handle, _) = rtnetlink::new_connection().context("connecting to netlink")?;
            tokio::spawn(connection);
            Ok(Self { handle, device: device.to_owned(), devices: HashMap::new() })
        }

        pub(in super::super) async fn take(&mut self, changes: &[Change]) -> Result<()> {
            // Devices that were missing are looked up again: they may exist by now.
            self.devices.retain(|_, index| index.is_some());
            let mut skipped = 0;
            for change in changes {
                let (rule, put) = match change {
                    Change::Put { rule, old } => {
                        if let Some(old) = old.as_ref().filter(|old| old.mac != rule.mac) {
                            self.forget_forwarding(old).await?;
                        }
                        (rule, true)
                    }
                    Change::Delete { rule, .. } => (rule, false),
                };
                let Some(mac) = mac(&rule.mac) else {
                    skipped += 1;
                    continue;
                };
                let Some(index) = self.device_of(rule.vni).await? else {
                    skipped += 1;
                    continue;
                };
                let done =
                    if put { self.put(rule, index, mac).await } else { self.delete(rule, index, mac).await };
                done.with_context(|| format!("rule {}/{}", rule.vni, rule.ip))?;
            }
            if skipped > 0 {
                tracing::warn!(rules = skipped, "skipped rules without a MAC address or a device");
            }
            Ok(())
        }

        async fn put(&self, rule: &pb::Rule, index: u32, mac: [u8; 6]) -> Result<()> {
            let ip: IpAddr = rule.ip.parse()?;
            let neighbour = self.handle.neighbours().add(index, ip);
            neighbour.link_layer_address(&mac).replace().execute().await.context("adding the neighbour")?;
            if let Ok(host) = rule.host_ip.parse::<IpAddr>() {
                let entry = self.handle.neighbours().add_bridge(index, &mac).destination(host);
                entry
                    .state(NeighbourState::Permanent)
                    .flags(NeighbourFlags::Own)
                    .replace()
                    .execute()
                    .await
                    .context("adding the forwarding entry")?;
            }
            Ok(())
        }

        async fn delete(&self, rule: &pb::Rule, index: u32, mac: [u8; 6]) -> Result<()> {
            let ip: IpAddr = rule.ip.parse()?;
            let mut neighbour = NeighbourMessage::default();
            neighbour.header.ifindex = index;
            neighbour.header.family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            neighbour.attributes.push(NeighbourAttribute::Destination(address(ip)));
            self.remove(neighbour).await.context("deleting the neighbour")?;
            self.delete_forwarding(rule, index, mac).await
        }

        /// Deletes the forwarding entry of a MAC address that a rule no longer has.
        async fn forget_forwarding(&mut self, old: &pb::Rule) -> Result<()> {
            match (mac(&old.mac), self.device_of(old.vni).await?) {
                (Some(mac), Some(index)) => self.delete_forwarding(old, index, mac).await,
                _ => Ok(()),
            }
        }

        async fn delete_forwarding(&self, rule: &pb::Rule, index: u32, mac: [u8; 6]) -> Result<()> {
            if let Ok(host) = rule.host_ip.parse::<IpAddr>() {
                let mut entry = NeighbourMessage::default();
                entry.header.ifindex = index;
                entry.header.family = AddressFamily::Bridge;
                entry.header.flags = NeighbourFlags::Own;
                entry.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
                entry.attributes.push(NeighbourAttribute::Destination(address(host)));
                self.remove(entry).await.context("deleting the forwarding entry")?;
            }
            Ok(())
        }

        /// Deletes an entry, if it exists.
        async fn remove(&self, message: NeighbourMessage) -> Result<()> {
            match self.handle.neighbours().del(message).execute().await {
                Err(Error::NetlinkError(error)) if matches!(error.raw_code(), -2 | -6) => Ok(()),
                done => Ok(done?),
            }
        }

        async fn device_of(&mut self, vni: u32) -> Result<Option<u32>> {
            if let Some(known) = self.devices.get(&vni) {
                return Ok(*known);
            }
            let name = self.device.replace(VNI_IN_NAME, &vni.to_string());
            let mut found = self.handle.link().get().match_name(name).execute();
            let index = match found.try_next().await {
                Ok(link) => link.map(|link| link.header.index),
                Err(Error::NetlinkError(_)) => None,
                Err(error) => return Err(error).context("looking for a device"),
            };
            self.devices.insert(vni, index);
            Ok(index)
        }
    }

    fn address(ip: IpAddr) -> NeighbourAddress {
        match ip {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        }
    }

    fn mac(text: &str) -> Option<[u8; 6]> {
        let mut octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16).ok());
        let mut mac = [0; 6];
        for octet in &mut mac {
            *octet = octets.next()??;
        }
        Some(mac)
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::{Change, Result};

    /// Cannot be made on this system.
    pub(in super::super) struct Linux(std::convert::Infallible);

    impl Linux {
        pub(in super::super) fn open(_: &str) -> Result<Self> {
            anyhow::bail!("--apply-linux needs Linux; use --hook on this system")
        }

        pub(in super::super) async fn take(&mut self, _: &[Change]) -> Result<()> {
            match self.0 {}
        }
    }
}
