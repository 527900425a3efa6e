package collect

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// removed stands in a bundle for what the filter has taken out.
const removed = "[removed]"

// maxLine is the longest line that the filter sees as one, in bytes. A longer one is cut there.
const maxLine = 64 << 10

// rule is what the filter takes out of a line.
type rule struct {
	// needs are texts in lower case of which each line that the pattern matches has one: to look for them is ten times faster.
	needs   []string
	pattern *regexp.Regexp
	with    string
}

// rules are what the filter takes out of a line, in this order. docs/evidence.md lists them for readers.
var rules = []rule{
	// Arguments: what follows the name of a field that has a command line, and the program itself in a list of processes.
	{[]string{"cmdline", "command line", "proctitle", "argv", "args", "execst"},
		regexp.MustCompile(`(?i)\b(cmdline|command line|proctitle|argv|args|execstart\w*|execstop\w*)(["']?\s*[:=]\s*).*`), "$1$2" + removed},
	// Processes of nvidia-smi -q and of nvidia-smi, and ps.
	{[]string{"name"}, regexp.MustCompile(`^(\s*Name\s+: \S+) .*`), "$1 " + removed},
	{[]string{"mib |"}, regexp.MustCompile(`^(\|.*\s\d+\s+(?:C|G|M|C\+G|M\+C)\s+\S+) .*?(\s+\d+MiB \|)$`), "$1 " + removed + "$2"},
	{[]string{":"}, regexp.MustCompile(`^(\s*(?:\S+\s+)?\d+\s.*\s\d+:\d\d(?::\d\d)?\s+\S+) .*`), "$1 " + removed},
	{[]string{" -", "\t-", "\r-", "\f-"},
		regexp.MustCompile(`((?:^|\s)--?[A-Za-z][\w-]*)(=|\s+)("(?:[^"\\]|\\.)*"|'[^']*'|[^\s-]\S*)`), "$1$2" + removed},
	// Environments: all from the name of a variable to the next one, because a value may have spaces.
	{[]string{"environment"}, regexp.MustCompile(`(?i)\b(environment(?:file)?)(["']?\s*[:=]\s*).*`), "$1$2" + removed},
	// Tokens.
	{[]string{"authorization"}, regexp.MustCompile(`(?i)\b((?:proxy-)?authorization)(["']?\s*[:=]\s*).*`), "$1$2" + removed},
	{[]string{"bearer"}, regexp.MustCompile(`(?i)\b(bearer)\s+[\w.~+/=-]{8,}`), "$1 " + removed},
	{[]string{"token", "secret", "passw", "passphrase", "api", "access", "private", "credential"},
		regexp.MustCompile(`(?i)([\w.-]*(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w.-]*)` +
			`(["']?\s*[:=]\s*)("(?:[^"\\]|\\.)*"|'[^']*'|.+)`), "$1$2" + removed},
	{[]string{"://"}, regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@]+@`), "$1" + removed + "@"},
	{[]string{"eyj"}, regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]+\.?[\w-]*`), removed},
	{[]string{"gh", "glpat-", "hf_", "nvapi-", "xox", "sk-", "ya29.", "aiza", "akia", "asia"},
		regexp.MustCompile(`\b(?:gh[pousr]_|github_pat_|glpat-|hf_|nvapi-|xox[abprs]-|sk-|ya29\.|AIza|AKIA|ASIA)[\w.-]{12,}`), removed},
}

// variable is an assignment as in an environment. Those of public are of the kernel's uevents, and stay.
var (
	variable = regexp.MustCompile(`(?:^|[\s"'(;,{\[])([A-Z_][A-Z0-9_]+)=`)
	public   = regexp.MustCompile(`^(?:DRIVER|SUBSYSTEM|DEVTYPE|DEVNAME|MAJOR|MINOR|MODALIAS|NAME|PCI_[A-Z_]+|SYSLOG_IDENTIFIER)$`)
	begins   = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*-----`)
	ends     = regexp.MustCompile(`-----END [A-Z0-9 ]*-----`)
)

// Filter takes tokens, environments and arguments out of text. The zero value is ready.
type Filter struct {
	// Lines counts the lines of which something was taken out.
	Lines int
	// secret is set within a key or certificate in PEM form.
	secret bool
}

// Line returns a line without what must not leave the node. What is in PEM form is taken out whole.
func (f *Filter) Line(line string) string {
	out := f.line(strings.ToValidUTF8(line, "?"))
	if out != line {
		f.Lines++
	}
	return out
}

func (f *Filter) line(line string) string {
	if f.secret {
		f.secret = !ends.MatchString(line)
		return removed
	}
	if at := begins.FindStringIndex(line); at != nil {
		f.secret = !ends.MatchString(line[at[1]:])
		line = line[:at[0]] + removed
	}
	text := folded(line)
	for _, rule := range rules {
		if slices.ContainsFunc(rule.needs, func(need string) bool { return strings.Contains(text, need) }) {
			line = rule.pattern.ReplaceAllString(line, rule.with)
		}
	}
	return withoutVariables(line)
}

// folded returns a line in the lower case of patterns that ignore case, for which ſ is an s, and with a space before it as before a word.
func folded(line string) string { return strings.ToLower(" " + strings.ReplaceAll(line, "ſ", "s")) }

// withoutVariables takes the values of environment variables out of a line.
func withoutVariables(line string) string {
	if !strings.Contains(line, "=") {
		return line
	}
	found := variable.FindAllStringSubmatchIndex(line, -1)
	if found == nil {
		return line
	}
	var out strings.Builder
	at := 0
	for i, match := range found {
		end := len(line)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		out.WriteString(line[at:match[1]])
		at = match[1]
		if !public.MatchString(line[match[2]:match[3]]) {
			out.WriteString(removed)
			at = end
		}
	}
	return out.String() + line[at:]
}

// filtered is the lines of a text that is written to it, without what the filter takes out, written to another writer.
type filtered struct {
	filter Filter
	// write gets each line with its end.
	write func(line []byte)
	rest  []byte
	// long is set while a line that was cut goes on.
	long bool
}

func (w *filtered) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		if room := maxLine - len(w.rest); !w.long {
			w.rest = append(w.rest, line[:min(room, len(line))]...)
			w.long = len(line) > room
		}
		if whole {
			w.flush()
		}
		rest = after
	}
	return len(p), nil
}

// flush writes the line so far.
func (w *filtered) flush() {
	w.write([]byte(w.filter.Line(string(w.rest)) + "\n"))
	w.rest, w.long = w.rest[:0], false
}

// close writes a last line that has no end.
func (w *filtered) close() {
	if len(w.rest) > 0 {
		w.flush()
	}
}
