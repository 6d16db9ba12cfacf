//! Holds the layout of the project: which crate may know which, what pure modules may touch, where unsafe code and
//! the environment are allowed, and the habits of files. A broken rule is listed with its file and line.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which of our crates each crate may depend on. Arrows point down only.
const ARROWS: [(&str, &[&str]); 6] = [
    ("ringway-topology", &[]),
    ("ringway-proto", &[]),
    ("ringway-dataplane", &["ringway-topology"]),
    ("ringway-collectives", &["ringway-dataplane", "ringway-topology"]),
    ("ringway-control", &["ringway-proto", "ringway-collectives", "ringway-dataplane", "ringway-topology"]),
    ("ringway", &["ringway-control", "ringway-collectives", "ringway-dataplane", "ringway-topology"]),
];

/// Modules of plain data and functions: replayed in simulation, so nothing in them may look at a clock, a socket,
/// the environment or another thread.
const PURE: &[&str] = &[
    "topology/src/model",
    "collectives/src/schedule",
    "control/src/core",
    "control/src/settings/table",
    "control/src/settings/value.rs",
    "dataplane/src/transport/matching",
    "dataplane/src/rdma/choice",
    "dataplane/src/rdma/ends.rs",
    "dataplane/src/rdma/handshake.rs",
    "dataplane/src/rdma/request.rs",
    "dataplane/src/rdma/wire.rs",
    "dataplane/src/shm/queue.rs",
    "dataplane/src/shm/wire.rs",
    "dataplane/src/rendezvous/key.rs",
    "dataplane/src/rendezvous/table",
    "dataplane/src/rendezvous/value.rs",
    "dataplane/src/rendezvous/wire.rs",
];

/// What a pure module must not name.
const IMPURE: &[&str] = &[
    "tokio",
    "tonic",
    "std::time::Instant",
    "Instant::now",
    "SystemTime",
    "std::net",
    "std::env",
    "std::thread",
    "thread::spawn",
];

/// The modules that may hold unsafe code.
const UNSAFE: [&str; 7] = [
    "topology/src/host",
    "dataplane/src/memory",
    "dataplane/src/rdma",
    "dataplane/src/uring",
    "dataplane/src/shm",
    "collectives/src/reduce",
    "collectives/src/nccl",
];

/// How the environment is read and changed; the program's arguments are another matter.
const READS_ENVIRONMENT: [&str; 7] = [
    "env::var",
    "env::vars",
    "env::var_os",
    "env::vars_os",
    "env::set_var",
    "env::remove_var",
    "std::env::{",
];

/// Where the environment is read.
const ENVIRONMENT: [&str; 2] = ["control/src/settings", "control/src/launch"];

/// The transports over hardware, and the file names that a reader finds in each.
const TRANSPORTS: [&str; 3] = ["dataplane/src/rdma", "dataplane/src/uring", "dataplane/src/shm"];
const TRANSPORT_FILES: [&str; 6] = ["connection", "device", "registration", "transport", "watch", "wire"];

/// The longest file that is still one room.
const MAX_LINES: usize = 650;

/// The longest function of library and program code.
const MAX_FUNCTION_LINES: usize = 80;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A source file: its path from the root, its text, and its code with comments, strings and unit tests blanked
/// out, line for line.
struct Source {
    path: String,
    text: String,
    code: String,
}

impl Source {
    /// Lines of code that hold `word`, as a word of its own, as `path:line`.
    fn places(&self, word: &str) -> Vec<String> {
        let lines = self.code.lines().enumerate().filter(|(_, line)| has_word(line, word));
        lines.map(|(at, _)| format!("{}:{}: {word}", self.path, at + 1)).collect()
    }

    /// Where functions begin, with their lengths in lines: as rustfmt lays them out, the end stands below the
    /// beginning.
    fn functions(&self) -> Vec<(usize, usize)> {
        let lines: Vec<&str> = self.code.lines().map(str::trim_end).collect();
        let begins = lines.iter().enumerate().filter(|(_, line)| begins_function(line));
        begins
            .map(|(at, line)| {
                let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
                let on_one_line = line.ends_with(['}', ';']);
                let more =
                    if on_one_line { 0 } else { lines[at..].iter().position(|l| *l == end).unwrap_or(0) };
                (at + 1, more + 1)
            })
            .collect()
    }

    fn is_in(&self, folders: &[&str]) -> bool {
        folders.iter().any(|folder| {
            let rest = self.path.strip_prefix(folder);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest == ".rs")
        })
    }

    /// Library and program code, as opposed to tests, benches, examples and generated code.
    fn is_shipped(&self) -> bool {
        let mut parts = self.path.split('/');
        let in_src = parts.any(|part| part == "src");
        in_src
            && !self.path.contains("/generated/")
            && !self.path.ends_with("/tests.rs")
            && !self.path.contains("/tests/")
    }
}

fn begins_function(line: &str) -> bool {
    let before = line.split_whitespace().take_while(|word| *word != "fn");
    line.split_whitespace().any(|word| word == "fn")
        && before
            .into_iter()
            .all(|word| word.starts_with("pub") || ["const", "async", "unsafe"].contains(&word))
}

fn has_word(line: &str, word: &str) -> bool {
    let bytes = line.as_bytes();
    let part_of_word = |at: Option<&u8>| at.is_some_and(|byte| is_word(*byte));
    line.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).and_then(|i| bytes.get(i));
        let ends_as_word = word.bytes().last().is_some_and(is_word);
        !(part_of_word(before) || ends_as_word && part_of_word(bytes.get(at + word.len())))
    })
}

/// Blanks out comments and the insides of string and character literals, keeping every line break.
fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at..] {
            [b'/', b'/', ..] => text[at..].find('\n').map_or(bytes.len(), |n| at + n),
            [b'/', b'*', ..] => end_of_block_comment(bytes, at),
            [b'"', ..] => end_of_string(bytes, at),
            [b'r', b'"' | b'#', ..] if is_raw_string(text, at) => end_of_raw_string(text, at),
            [b'\'', b'\\', ..] => text[at + 3..].find('\'').map_or(bytes.len(), |n| at + n + 4),
            [b'\'', _, b'\'', ..] => at + 3,
            _ => {
                code.push(bytes[at]);
                at += 1;
                continue;
            }
        };
        code.extend(bytes[at..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
        at = end;
    }
    String::from_utf8_lossy(&code).into_owned()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn end_of_block_comment(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        match bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn hashes_after(text: &str, r: usize) -> usize {
    text[r + 1..].bytes().take_while(|byte| *byte == b'#').count()
}

/// Whether the `r` begins a raw string, not a raw identifier or the end of a word.
fn is_raw_string(text: &str, r: usize) -> bool {
    let bytes = text.as_bytes();
    bytes.get(r + 1 + hashes_after(text, r)) == Some(&b'"') && (r == 0 || !is_word(bytes[r - 1]))
}

fn end_of_raw_string(text: &str, r: usize) -> usize {
    let hashes = hashes_after(text, r);
    let inside = r + hashes + 2;
    let close = format!("\"{}", "#".repeat(hashes));
    text[inside..].find(&close).map_or(text.len(), |n| inside + n + close.len())
}

/// Blanks out `#[cfg(test)] mod ... { }`, which runs to the end of the file in this project.
fn without_tests(code: &str) -> String {
    let Some(start) = code.find("#[cfg(test)]\nmod ") else { return code.to_owned() };
    // `mod tests;` names another file, and code may follow it.
    if code[start..]
        .find(';')
        .is_some_and(|semicolon| code[start..].find('{').is_none_or(|brace| semicolon < brace))
    {
        return code.to_owned();
    }
    let blank: String = code[start..].chars().filter(|c| *c == '\n').collect();
    format!("{}{blank}", &code[..start])
}

/// All files below the root, without what is built or hidden.
fn files() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder can be listed") {
            let entry = entry.expect("an entry can be read");
            let name = entry.file_name().into_string().expect("names are plain");
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if entry.file_type().expect("a type").is_dir() {
                folders.push(entry.path())
            } else {
                found.push(entry.path())
            }
        }
    }
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("below the root").to_str().expect("names are plain").to_owned()
}

fn sources() -> Vec<Source> {
    let rust = files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| {
        let text = std::fs::read_to_string(&path).expect("sources are text");
        Source { path: relative(&path), code: without_tests(&code_only(&text)), text }
    })
    .collect()
}

fn assert_none(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn the_reader_of_sources_sees_code_only() {
    let seen = |text: &str| code_only(text).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(seen("a // unsafe\nb"), "a b");
    assert_eq!(seen("a /* x /* unsafe */ y */ b"), "a b");
    assert_eq!(seen(r#"f("un\"safe", 'x', '\'', b)"#), "f( , , , b)");
    assert_eq!(seen("r#\"unsafe \" \"# r#type"), "r#type");
    assert_eq!(seen("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
    assert_eq!(without_tests("a\n#[cfg(test)]\nmod tests {\n unsafe\n}\n"), "a\n\n\n\n\n");
    assert_eq!(without_tests("#[cfg(test)]\nmod tests;\nb {}\n"), "#[cfg(test)]\nmod tests;\nb {}\n");
    assert!(
        has_word("unsafe {", "unsafe")
            && !has_word("unsafe_code", "unsafe")
            && has_word("use std::net::X", "std::net")
    );
}

#[test]
fn crates_depend_downwards_only() {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    let mut seen = BTreeSet::new();
    let mut broken = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = text(&package["name"]);
        let below = allowed.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no place in the layout"));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let to = text(&dependency["name"]);
            // Tests of a crate may look around more freely.
            let of_tests = dependency["kind"] == "dev";
            if allowed.contains_key(to.as_str()) && !of_tests && !below.contains(&to.as_str()) {
                broken.push(format!("{name} -> {to}"));
            }
        }
        seen.insert(name);
    }
    assert_eq!(seen.len(), ARROWS.len(), "{seen:?}");
    assert_none(&broken, "a crate depends on one that is not below it");
}

#[test]
fn collectives_know_no_transport() {
    let sources = sources();
    let of_collectives = sources.iter().filter(|source| source.path.starts_with("collectives/src/"));
    let names = ["ringway_dataplane::uring", "ringway_dataplane::rdma", "ringway_dataplane::shm"];
    let broken: Vec<String> =
        of_collectives.flat_map(|source| names.into_iter().flat_map(|name| source.places(name))).collect();
    assert_none(&broken, "collectives see the Transport trait and never a transport");
}

#[test]
fn pure_modules_are_pure() {
    let sources = sources();
    let pure: Vec<&Source> =
        sources.iter().filter(|source| source.is_shipped() && source.is_in(PURE)).collect();
    assert!(pure.len() > 10, "the pure modules are there: {}", pure.len());
    let broken: Vec<String> =
        pure.iter().flat_map(|source| IMPURE.iter().copied().flat_map(|word| source.places(word))).collect();
    assert_none(&broken, "a pure module touches the world");
}

#[test]
fn unsafe_code_stays_in_its_modules() {
    let sources = sources();
    let outside = sources.iter().filter(|source| source.path.contains("src/") && !source.is_in(&UNSAFE));
    let broken: Vec<String> = outside.flat_map(|source| source.places("unsafe")).collect();
    assert_none(&broken, "unsafe code outside of the modules that may hold it");
}

/// The compiler holds the rule above too: what is outside of the marked modules forbids unsafe code, in the file
/// itself, in the module around it, or in the crate. The root of a crate with marked modules cannot.
#[test]
fn unsafe_code_is_forbidden_elsewhere() {
    const FORBID: &str = "#![forbid(unsafe_code)]";
    let sources = sources();
    let forbids: BTreeSet<&str> = sources
        .iter()
        .filter(|source| source.code.contains(FORBID))
        .map(|source| source.path.as_str())
        .collect();
    let is_covered = |path: &str| {
        let mut folder = path;
        while let Some((parent, _)) = folder.rsplit_once('/') {
            let around = [
                format!("{parent}.rs"),
                format!("{parent}/mod.rs"),
                format!("{parent}/lib.rs"),
                format!("{parent}/main.rs"),
            ];
            if around.iter().any(|file| forbids.contains(file.as_str())) {
                return true;
            }
            folder = parent;
        }
        forbids.contains(path)
    };
    let is_marked_root = |path: &str| {
        let package = path.strip_suffix("/lib.rs");
        package.is_some_and(|package| UNSAFE.iter().any(|folder| folder.starts_with(&format!("{package}/"))))
    };
    let outside = sources.iter().filter(|source| source.is_shipped() && !source.is_in(&UNSAFE));
    let broken: Vec<String> = outside
        .filter(|source| !is_marked_root(&source.path) && !is_covered(&source.path))
        .map(|source| format!("{}: add {FORBID}, or to the module around it", source.path))
        .collect();
    assert_none(&broken, "modules that do not forbid unsafe code");
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    /// How many lines above the block its reason may begin to end.
    const ABOVE: usize = 6;
    let mut broken = Vec::new();
    for source in sources().iter().filter(|source| source.is_in(&UNSAFE)) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (at, line) in source.code.lines().enumerate().filter(|(_, line)| has_word(line, "unsafe")) {
            let after = line.split("unsafe").nth(1).unwrap_or_default().trim_start();
            let block = after.starts_with('{') || after.starts_with("impl");
            let declared =
                after.starts_with("fn") || after.starts_with("extern") || after.starts_with("trait");
            let above = lines[at.saturating_sub(ABOVE)..=at].iter();
            if block && !above.clone().any(|line| line.contains("SAFETY:")) {
                broken.push(format!("{}:{}", source.path, at + 1));
            }
            assert!(
                block || declared || after.is_empty() || after.starts_with('('),
                "{}:{}: {line}",
                source.path,
                at + 1
            );
        }
    }
    assert_none(&broken, "unsafe code without a SAFETY comment just above it");
}

#[test]
fn the_environment_is_read_in_two_places() {
    let sources = sources();
    let others = sources.iter().filter(|source| source.is_shipped() && !source.is_in(&ENVIRONMENT));
    let broken: Vec<String> = others
        .flat_map(|source| READS_ENVIRONMENT.into_iter().flat_map(|word| source.places(word)))
        .collect();
    assert_none(&broken, "the environment is read outside of settings and launch");
}

#[test]
fn files_are_rooms_of_one_purpose() {
    let vague = ["utils", "util", "common", "helpers", "helper", "misc"];
    let mut broken = Vec::new();
    for source in sources().iter().filter(|source| !source.path.contains("/generated/")) {
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            broken.push(format!("{}: {lines} lines, at most {MAX_LINES}", source.path));
        }
        let parts = source.path.trim_end_matches(".rs").split('/');
        broken.extend(
            parts
                .filter(|part| vague.contains(part))
                .map(|part| format!("{}: {part} says nothing", source.path)),
        );
    }
    assert_none(&broken, "files that are too long or have no purpose in their name");
}

#[test]
fn functions_fit_a_screen() {
    let sources = sources();
    let shipped: Vec<&Source> = sources.iter().filter(|source| source.is_shipped()).collect();
    let lengths = shipped.iter().flat_map(|s| s.functions().into_iter().map(move |(at, n)| (&s.path, at, n)));
    let all: Vec<_> = lengths.collect();
    assert!(all.iter().any(|(.., n)| *n > MAX_FUNCTION_LINES / 2), "the reader of functions finds some");
    let long = all.iter().filter(|(.., n)| *n > MAX_FUNCTION_LINES);
    let broken: Vec<String> =
        long.map(|(path, at, n)| format!("{path}:{at}: {n} lines, at most {MAX_FUNCTION_LINES}")).collect();
    assert_none(&broken, "functions that are too long");
}

#[test]
fn nothing_is_left_undone() {
    let marks = ["todo!", "unimplemented!"];
    let mut broken = Vec::new();
    for source in sources() {
        broken.extend(marks.into_iter().flat_map(|mark| source.places(mark)));
        // Tests included: one that is switched off tests nothing.
        let off =
            source.text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("#[ignore"));
        broken.extend(off.map(|(at, _)| format!("{}:{}: #[ignore]", source.path, at + 1)));
    }
    assert_none(&broken, "work that is left undone");
}

#[test]
fn texts_are_plain() {
    const EM_DASH: char = '\u{2014}';
    let texts = ["rs", "md", "proto", "sh", "toml"];
    let mut broken = Vec::new();
    for path in files()
        .iter()
        .filter(|path| path.extension().and_then(|e| e.to_str()).is_some_and(|e| texts.contains(&e)))
    {
        let text = std::fs::read_to_string(path).expect("texts are UTF-8");
        let lines = text.lines().enumerate().filter(|(_, line)| line.contains(EM_DASH));
        broken.extend(lines.map(|(at, _)| format!("{}:{}", relative(path), at + 1)));
    }
    assert_none(&broken, "an em-dash: use a comma, a colon or two sentences");
}

#[test]
fn transports_have_the_same_files() {
    let mut by_transport = BTreeMap::new();
    // A folder is a transport once it has one.
    let is_transport = |folder: &&&str| root().join(folder).join("transport.rs").is_file();
    for folder in TRANSPORTS.iter().filter(is_transport) {
        let has = |name: &&str| {
            let at = root().join(folder).join(name);
            at.is_dir() || at.with_extension("rs").is_file()
        };
        by_transport.insert(*folder, TRANSPORT_FILES.iter().copied().filter(has).collect::<Vec<_>>());
    }
    let different: BTreeSet<&Vec<&str>> = by_transport.values().collect();
    assert!(
        different.len() <= 1,
        "transports differ in their files, out of {TRANSPORT_FILES:?}: {by_transport:#?}"
    );
}
