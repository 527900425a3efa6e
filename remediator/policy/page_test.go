package policy

import (
	"fmt"
	"go/doc/comment"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

const (
	page     = "../../docs/policy.md"
	shipped  = "../../manifests/policy.yaml"
	howToRun = "go test ./remediator/policy -run Page -update"
	width    = 125
)

const intro = `# The policy

<!-- Written by ` + "`" + howToRun + "`" + ` from the Go types of remediator/policy and their comments. -->

The policy says what the remediator does about a NodeCondition: taint the node, restart the jobs on it, or only report the
fault. It is one YAML file. The chart makes it the ConfigMap ` + "`pitcrew-policy`" + ` from its values under ` + "`policy`" + `, which
merge into the [default policy](../manifests/policy.yaml). [policy-third-party.yaml](../manifests/policy-third-party.yaml) has
rules for conditions of other projects. [ADR 4](adr/0004-policy-is-a-file.md) says why the policy is a file and no custom resource.

- The file is read strictly. An unknown field, a field that is set twice and a second YAML document are errors. All errors are
  reported at once, each with its line, field and value.
- ` + "`kubectl pitcrew policy validate -f FILE`" + ` checks a file. [policy.schema.json](../manifests/policy.schema.json) lets an editor check
  it. ` + "`kubectl pitcrew policy test -f FILE`" + ` shows what a policy would do on the cluster now.
- Warnings name what is valid and most likely a mistake: a condition whose name is nearly that of a known one, and two rules that match
  the same with the same priority. ` + "`-validate`, `kubectl pitcrew policy validate` and `policy test`" + ` print them, and the remediator
  reports them once as the Event ` + "`PolicyWarning`" + ` on its namespace.
- The remediator reads a changed file within about two minutes. While the file is invalid, the last valid policy stays in force
  ([runbook](runbooks/PitcrewPolicyInvalid.md)). A remediator that starts with an invalid file has no policy: it decides nothing
  about nodes, finishes the restarts of jobs that are under way, and is not ready until the file is valid. ` + "`-validate`" + ` fails.
- A rule observes until ` + "`mode: enforce`" + ` is set, for the policy or for the rule ([ADR 6](adr/0006-observe-first.md)).
- Of the rules that match a condition, only one decides: the one with the largest ` + "`priority`" + `, then the first by name.
- A duration is a number with a unit, like ` + "`30s`, `10m` or `1h30m`" + `. Days have no unit: write ` + "`24h`" + `.
- A field without a value, or with an empty one, has its default. ` + "`NAME`" + ` in a path stands for a name that you choose.

The default policy starts like this. It has more rules than this one:

`

// policyPage is docs/policy.md.
func policyPage(t *testing.T) string {
	t.Helper()
	b := &strings.Builder{}
	b.WriteString(intro + "```yaml\n" + beginning(t) + "```\n")
	root := reference(t)
	b.WriteString("\n## File\n\n")
	list(b, root)
	documented := map[string]string{}
	for _, e := range root.fields {
		if len(e.fields) > 0 {
			section(b, e, documented)
		}
	}
	return b.String()
}

// beginning is the default policy with one of its rules.
func beginning(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	before, rules, ok := strings.Cut(string(data), "\n  rules:\n")
	rule := regexp.MustCompile(`(?m)^(    #.*\n)*    gpu-xid:\n(      .*\n)+`).FindString(rules)
	if !ok || rule == "" {
		t.Fatalf("%s has no rule gpu-xid", shipped)
	}
	text := before + "\n  rules:\n" + rule
	if p := parse(t, text); len(p.Rules) != 1 {
		t.Fatalf("the page shows %d rules", len(p.Rules))
	}
	return text
}

// section describes a part of the policy, and then the parts of it.
func section(b *strings.Builder, e *entry, documented map[string]string) {
	fmt.Fprintf(b, "\n## `%s`\n\n", e.path)
	if first := documented[e.of.Name()]; first != "" {
		fmt.Fprintf(b, "The fields are those of [`%s`](#%s):\n\n", first, anchor(first))
		for _, f := range e.fields {
			fmt.Fprintf(b, "- %s\n", facts(f))
		}
	} else {
		documented[e.of.Name()] = e.path
		subject := "Each entry"
		if e.field.Type.Kind() != reflect.Slice {
			subject = "`" + e.name + "`"
		}
		var p comment.Parser
		for _, block := range p.Parse(subject + strings.TrimPrefix(e.typed, e.of.Name())).Content {
			if example, ok := block.(*comment.Code); ok {
				b.WriteString("```yaml\n" + example.Text + "```\n\n")
				break
			}
			b.WriteString(paragraph("", block) + "\n")
		}
		list(b, e)
	}
	for _, f := range e.fields {
		if len(f.fields) > 0 {
			section(b, f, documented)
		}
	}
}

// list describes the fields of a part.
func list(b *strings.Builder, of *entry) {
	for _, e := range of.fields {
		var p comment.Parser
		text := paragraph("  ", p.Parse("**`"+e.name+"`**"+strings.TrimPrefix(e.doc, e.name)).Content...)
		fmt.Fprintf(b, "- %s  - %s\n", strings.TrimPrefix(text, "  "), facts(e))
	}
}

// facts are the path, type, values and default of a field.
func facts(e *entry) string {
	is := []string{form(e)}
	if len(e.fields) > 0 {
		is[0] = fmt.Sprintf("[%s](#%s)", is[0], anchor(e.path))
	}
	if text := allowed(e); text != "" {
		is = append(is, text)
	}
	switch {
	case e.required():
		is = append(is, "required")
	case e.unset != "":
		is = append(is, "default: "+e.unset)
	}
	return fmt.Sprintf("`%s`: %s", strings.TrimSuffix(strings.TrimSuffix(e.path, "[]"), "[NAME]"), strings.Join(is, "; "))
}

func paragraph(indent string, blocks ...comment.Block) string {
	printer := comment.Printer{TextWidth: width, TextPrefix: indent}
	text := string(printer.Text(&comment.Doc{Content: blocks}))
	return otherPage.ReplaceAllString(text, "[$1]($2)")
}

var otherPage = regexp.MustCompile(`(docs/([A-Za-z/]+\.md))`)

var notInAnchor = regexp.MustCompile("[^a-z0-9 _-]")

func anchor(heading string) string {
	return strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

func TestPolicyPageIsUpToDate(t *testing.T) {
	upToDate(t, page, policyPage(t))
}

func upToDate(t *testing.T, file, want string) {
	t.Helper()
	if npdtest.Update() {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s does not match the types and their comments (%v); run %s", file, err, howToRun)
	}
}
