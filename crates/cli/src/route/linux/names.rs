//! Which devices are whose: names with the network's number in them.

use anyhow::{Result, ensure};

/// Stands for the VNI in a device's name.
const VNI: &str = "{vni}";
/// Linux's limit, in bytes.
const NAME_MAX: usize = 15;

/// The names of networks' devices.
#[derive(Clone)]
pub(super) struct Names {
    pattern: String,
    /// Where the VNI begins.
    at: usize,
}

impl Names {
    /// # Errors
    /// `pattern` lacks `{vni}`, or is too long for any VNI.
    pub(super) fn new(pattern: &str) -> Result<Self> {
        let Some(at) = pattern.find(VNI) else {
            anyhow::bail!("--device {pattern:?} must contain {VNI}, like \"vxlan{VNI}\"");
        };
        let names = Self { pattern: pattern.to_owned(), at };
        ensure!(
            names.of(0).len() <= NAME_MAX,
            "--device {pattern:?} is too long: Linux's names of devices have at most {NAME_MAX} bytes"
        );
        Ok(names)
    }

    pub(super) fn of(&self, vni: u32) -> String {
        self.pattern.replace(VNI, &vni.to_string())
    }

    /// The network of a device.
    pub(super) fn vni(&self, name: &str) -> Option<u32> {
        let digits: String = name.get(self.at..)?.chars().take_while(char::is_ascii_digit).collect();
        let vni = digits.parse().ok()?;
        (self.of(vni) == name).then_some(vni)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_network() {
        let names = Names::new("vx{vni}-a").unwrap();
        assert_eq!(names.of(7), "vx7-a");
        assert_eq!(names.vni("vx7-a"), Some(7));
        for other in ["vx07-a", "vx-a", "vx7-b", "eth0", "v", "", "vx7", "vx99999999999-a", "vx+7-a", "vé7-a"]
        {
            assert_eq!(names.vni(other), None, "{other}");
        }
        let twice = Names::new("v{vni}.{vni}").unwrap();
        assert_eq!((twice.vni("v12.12"), twice.vni("v12.1")), (Some(12), None));
        assert!(Names::new("vxlan").err().unwrap().to_string().contains("{vni}"));
        assert!(Names::new("a-very-long-name{vni}").err().unwrap().to_string().contains("15"));
    }
}
