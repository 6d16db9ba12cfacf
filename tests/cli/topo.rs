//! `ringway topo`: machines that are described, this one, pictures, and what it says when asked for what cannot be.

use std::path::{Path, PathBuf};

use crate::process::{Run, ringway};

fn topo(arguments: &[&str]) -> (i32, String, String) {
    let end = Run::start(ringway(&[&["topo"], arguments].concat())).end();
    (end.code(), end.stdout.join("\n"), end.stderr)
}

fn shape(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("topology/shapes").join(format!("{name}.xml"));
    path.to_str().expect("paths here are text").to_owned()
}

/// A file that is removed in the end.
struct Written(PathBuf);

impl Written {
    fn new(name: &str) -> Written {
        Written(std::env::temp_dir().join(format!("ringway-topo-{}-{name}", std::process::id())))
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("paths here are text")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).expect("it was written")
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn each_gpu_of_a_dgx_has_its_own_card_and_local_cores() {
    let (code, text, _) = topo(&["--simulate", &shape("dgx-h100"), "--ranks", "8"]);
    assert_eq!(code, 0);
    let row = |rank: &str| {
        let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.into_iter()
            .find(|words| words.first() == Some(&rank) && words.len() > 6)
            .expect("a row per rank")
    };
    assert_eq!(row("0"), ["0", "0-12,112-124", "13,125", "node", "0", "cuda0", "mlx5_0", "ibp25s0"]);
    assert_eq!(row("7"), ["7", "98-110,210-222", "111,223", "node", "1", "cuda7", "mlx5_11", "ibp201s0"]);
    assert!(text.contains("mlx5_11 behind the same PCI switch as the accelerator"), "{text}");
    let picture = Written::new("dgx.svg");
    assert_eq!(topo(&["--simulate", &shape("dgx-h100"), "-o", picture.name()]).0, 0);
    let svg = picture.text();
    assert!(svg.starts_with("<svg") && svg.contains("cuda7") && svg.contains("mlx5_11"), "{svg}");
}

#[test]
fn this_machine_is_exported_and_simulated_to_the_same_end() {
    let file = Written::new("here.xml");
    assert_eq!(topo(&["-o", file.name()]).0, 0);
    assert!(file.text().contains("<topology version=\"2.0\">"));
    let table = |text: &str| text.split_once("\nrank").map(|(_, table)| table.to_owned()).expect("a table");
    let here = topo(&["-n", "3"]).1;
    let there = topo(&["-n", "3", "--simulate", file.name()]).1;
    assert_eq!(table(&here), table(&there));
}

#[test]
fn flags_go_before_settings() {
    let with = |arguments: &[&str], environment: &[(&str, &str)]| {
        let vm = shape("cloud-vm");
        let mut command = ringway(&[&["topo", "--simulate", vm.as_str(), "-n", "4"], arguments].concat());
        command.envs(environment.iter().copied());
        Run::start(command).end().stdout.join("\n")
    };
    assert!(with(&[], &[]).contains("cpus 2-3 of"));
    assert!(with(&[], &[("RINGWAY_PIN_THREADS", "one")]).contains("cpus 2 of"));
    assert!(with(&["--threads", "all"], &[("RINGWAY_PIN_THREADS", "one")]).contains("cpus 2-3 of"));
    assert!(with(&["--cpus", "0-1,6"], &[]).contains("cpus 0-1,6 of"), "four ranks share three CPUs");
    assert!(!with(&["--progress", "shared"], &[]).contains("progress thread"));
}

#[test]
fn what_cannot_be_is_said_with_a_remedy() {
    for (arguments, said) in [
        (&["--simulate", "/nonexistent.xml"][..], "/nonexistent.xml"),
        (&["--simulate", &shape("cloud-vm"), "--accelerators", "gpu0"], "write it as lspci -D does"),
        (
            &["--simulate", &shape("dgx-h100"), "-n", "9", "--accelerators", "auto"],
            "8 devices are named for 9",
        ),
        (&["--cpus", "60000"], "which the machine does not have online"),
        (&["--cpus", "x"], "--cpus"),
        (&["-o", "/tmp/machine.png"], ".svg, .xml or .txt"),
    ] {
        let (code, _, stderr) = topo(arguments);
        assert_eq!(code, 125, "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
    if cfg!(feature = "hwloc") {
        assert!(topo(&["--synthetic", "core:4 pu:2", "-n", "2"]).1.contains("cpus 0-3 of the only"));
        assert_eq!(topo(&["--synthetic", "nonsense"]).0, 125);
    }
}
