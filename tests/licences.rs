//! Every dependency is under a licence that may be shipped with an Apache-2.0 program.
#![forbid(unsafe_code)]

use std::process::Command;

/// Licences that a dependency may be taken under.
const ALLOWED: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether an SPDX expression can be met with allowed licences alone: every `AND` term has an allowed `OR` choice.
fn acceptable(expression: &str) -> bool {
    let flat = expression.replace('/', " OR ").replace(['(', ')'], " ");
    let allowed = |term: &str| ALLOWED.contains(&term.trim());
    // `A AND (B OR C)` and `(B OR C) AND A` are the only nestings that occur; splitting by AND first reads both.
    flat.split(" AND ").all(|part| part.split(" OR ").any(allowed))
}

#[test]
fn expressions_are_read_as_spdx_means_them() {
    assert!(acceptable("MIT OR GPL-3.0-only"));
    assert!(acceptable("MIT/Apache-2.0"));
    assert!(acceptable("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!acceptable("MIT AND GPL-3.0-only"));
    assert!(!acceptable("GPL-2.0-only"));
}

#[test]
fn every_dependency_may_be_shipped() {
    let out = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 20, "only {} packages: is the metadata whole?", packages.len());
    let refused: Vec<String> = packages
        .iter()
        .filter(|p| !acceptable(p["license"].as_str().unwrap_or("none given")))
        .map(|p| format!("{} {}: {}", p["name"], p["version"], p["license"]))
        .collect();
    assert!(refused.is_empty(), "not allowed: {refused:#?}");
}
