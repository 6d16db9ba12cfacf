//! Facts and findings of a look at the machine, as text and as JSON. Pure.

use std::fmt::Write;

use serde::Serialize;

/// All that was found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Ringway's version.
    pub(super) version: &'static str,
    /// The host's name.
    pub(super) host: String,
    /// The kernel and its release.
    pub(super) kernel: String,
    /// One per subject.
    pub(super) sections: Vec<Section>,
}

/// One subject.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    /// What it is about.
    pub(super) title: &'static str,
    /// What there is.
    pub(super) facts: Vec<Fact>,
    /// What is in the way.
    pub(super) findings: Vec<Finding>,
}

/// One thing there is.
#[derive(Debug, Serialize)]
pub(super) struct Fact {
    /// Its name.
    pub(super) name: String,
    /// What it is.
    pub(super) value: String,
    /// Where it comes from or what follows; empty when there is nothing to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) note: String,
    /// Left out of the text, where a summary stands for it.
    #[serde(skip)]
    pub(super) only_json: bool,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Ringway cannot work so.
    Problem,
    /// It works, and could work better.
    Advice,
}

/// One thing in the way.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    /// How bad it is.
    pub(super) severity: Severity,
    /// What it is.
    pub(super) what: String,
    /// What to do about it.
    pub(super) remedy: String,
}

impl Section {
    pub(super) fn new(title: &'static str) -> Self {
        Section { title, facts: Vec::new(), findings: Vec::new() }
    }

    pub(super) fn fact(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.noted(name, value, "");
    }

    pub(super) fn noted(
        &mut self,
        name: impl Into<String>,
        value: impl Into<String>,
        note: impl Into<String>,
    ) {
        let (name, value, note) = (name.into(), value.into(), note.into());
        self.facts.push(Fact { name, value, note, only_json: false });
    }

    pub(super) fn problem(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.find(Severity::Problem, what, remedy);
    }

    pub(super) fn advice(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.find(Severity::Advice, what, remedy);
    }

    pub(super) fn find(&mut self, severity: Severity, what: impl Into<String>, remedy: impl Into<String>) {
        self.findings.push(Finding { severity, what: what.into(), remedy: remedy.into() });
    }
}

impl Report {
    /// Whether nothing stops ringway.
    pub(super) fn is_fit(&self) -> bool {
        let mut findings = self.sections.iter().flat_map(|section| &section.findings);
        findings.all(|finding| finding.severity != Severity::Problem)
    }

    /// For people.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("ringway {} on {}, {}\n", self.version, self.host, self.kernel);
        for section in &self.sections {
            let _ = write!(text, "\n{}\n", section.title);
            let shown: Vec<&Fact> = section.facts.iter().filter(|fact| !fact.only_json).collect();
            let width = shown.iter().map(|fact| fact.name.chars().count()).max().unwrap_or(0);
            for fact in shown {
                let note = if fact.note.is_empty() { String::new() } else { format!("  ({})", fact.note) };
                let _ = writeln!(text, "  {:width$}  {}{note}", fact.name, fact.value);
            }
            for finding in &section.findings {
                let mark = match finding.severity {
                    Severity::Problem => "! problem",
                    Severity::Advice => "- advice",
                };
                let _ = writeln!(text, "  {mark}: {}\n      {}", finding.what, finding.remedy);
            }
        }
        let all = || self.sections.iter().flat_map(|section| &section.findings);
        let count = |severity| all().filter(|finding| finding.severity == severity).count();
        let _ = writeln!(text, "\n{}", conclusion(count(Severity::Problem), count(Severity::Advice)));
        text
    }

    /// For programs: `ok`, and everything in the text.
    pub(super) fn to_json(&self) -> String {
        let mut value = serde_json::to_value(self).expect("text, booleans and lists are always JSON");
        value["ok"] = self.is_fit().into();
        format!("{value:#}\n")
    }
}

fn conclusion(problems: usize, advice: usize) -> String {
    let counted =
        |n: usize, one: &str, many: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {many}") };
    let pieces = counted(advice, "piece of advice", "pieces of advice");
    match (problems, advice) {
        (0, 0) => "Nothing is in the way.".to_owned(),
        (0, _) => format!("Nothing is in the way; {pieces} above."),
        (n, _) => format!("{} would stop ringway; {pieces}; see above.", counted(n, "problem", "problems")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(sections: Vec<Section>) -> Report {
        Report { version: "1.2.3", host: "node1".into(), kernel: "Linux 6.18".into(), sections }
    }

    #[test]
    fn text_lines_up_and_ends_with_a_conclusion() {
        let mut section = Section::new("Memory");
        section.fact("a", "1");
        section.noted("long name", "2", "from the kernel");
        section.advice("too little", "add more");
        assert_eq!(
            report(vec![section]).to_text(),
            "ringway 1.2.3 on node1, Linux 6.18\n\nMemory\n  a          1\n  long name  2  (from the kernel)\n  \
             - advice: too little\n      add more\n\nNothing is in the way; 1 piece of advice above.\n"
        );
    }

    #[test]
    fn a_problem_makes_it_unfit() {
        let mut section = Section::new("Network");
        section.problem("none", "bring one up");
        let report = report(vec![section]);
        assert!(!report.is_fit());
        assert!(report.to_text().ends_with("1 problem would stop ringway; 0 pieces of advice; see above.\n"));
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["ok"], false);
        assert_eq!(json["sections"][0]["findings"][0]["severity"], "problem");
    }
}
