package policy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// The apiVersion and kind of a policy file.
const (
	APIVersion = conditions.Domain + "/v1alpha1"
	Kind       = "RemediationPolicy"
)

const defaultClearAfter = 10 * time.Minute

// DefaultUnknownAfter is the unknownAfter of a rule that has none: two heartbeats of the Node Problem Detector, which writes
// one every 5 minutes by default, and a bit.
const DefaultUnknownAfter = 11 * time.Minute

// document is the file as it is written. Durations, classes and patterns are text, so that an error about one can
// name its rule, field and value. manifests/policy.schema.json describes the same fields.
type document struct {
	APIVersion string         `yaml:"apiVersion"`
	Kind       string         `yaml:"kind"`
	Metadata   map[string]any `yaml:"metadata"`
	Spec       spec           `yaml:"spec"`
}

type spec struct {
	Mode       string             `yaml:"mode"`
	Budget     budget             `yaml:"budget"`
	Breaker    *breaker           `yaml:"breaker"`
	Correlated *correlated        `yaml:"correlated"`
	Restart    restart            `yaml:"restart"`
	JobKinds   []jobKind          `yaml:"jobKinds"`
	HandOff    *handOff           `yaml:"handOff"`
	Output     output             `yaml:"output"`
	Webhooks   map[string]webhook `yaml:"webhooks"`
	Rules      map[string]rule    `yaml:"rules"`
}

type budget struct {
	MaxNodes   *int   `yaml:"maxNodes"`
	MaxPercent *int   `yaml:"maxPercent"`
	Scope      string `yaml:"scope"`
	Window     string `yaml:"window"`
}

type breaker struct {
	MaxNodes int    `yaml:"maxNodes"`
	Window   string `yaml:"window"`
	CoolDown string `yaml:"coolDown"`
	Pace     string `yaml:"pace"`
}

type correlated struct {
	MaxPercent int      `yaml:"maxPercent"`
	MinNodes   int      `yaml:"minNodes"`
	Window     string   `yaml:"window"`
	Scopes     []string `yaml:"scopes"`
}

type rule struct {
	Match           match    `yaml:"match"`
	Mode            string   `yaml:"mode"`
	For             string   `yaml:"for"`
	ClearAfter      string   `yaml:"clearAfter"`
	UnknownAfter    string   `yaml:"unknownAfter"`
	Taint           taint    `yaml:"taint"`
	HandOff         *handOff `yaml:"handOff"`
	AlertOnly       bool     `yaml:"alertOnly"`
	RestartJobs     bool     `yaml:"restartJobs"`
	CheckpointGrace string   `yaml:"checkpointGrace"`
	Budget          budget   `yaml:"budget"`
	Flaps           flaps    `yaml:"flaps"`
	Priority        int      `yaml:"priority"`
}

type match struct {
	Condition    string            `yaml:"condition"`
	Status       string            `yaml:"status"`
	Repair       []string          `yaml:"repair"`
	Reason       string            `yaml:"reason"`
	Message      string            `yaml:"message"`
	NodeSelector map[string]string `yaml:"nodeSelector"`
}

type taint struct {
	Key    string `yaml:"key"`
	Value  string `yaml:"value"`
	Effect string `yaml:"effect"`
}

type output struct {
	AWS bool `yaml:"aws"`
}

type flaps struct {
	Max    int    `yaml:"max"`
	Window string `yaml:"window"`
}

// Parse checks a policy file. An unknown field, a field that is set twice and a second YAML document are errors; an
// error gives the line and names the rule, the field and the value.
func Parse(data []byte) (*Policy, error) {
	var doc document
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&doc); err != nil && !errors.Is(err, io.EOF) { // EOF: empty, which check finds wanting
		return nil, err
	}
	if err := decoder.Decode(&document{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document")
	}
	p, errs := doc.check()
	if len(errs) == 0 {
		return p, nil
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, err
	}
	var located []error
	for _, err := range errs {
		located = append(located, fmt.Errorf("line %d: %w", line(&root, err.Field), err))
	}
	return nil, errors.Join(located...)
}

// segment is one step of a field path: a name, or a key or index in brackets.
var segment = regexp.MustCompile(`\[([^\]]*)\]|[^.\[\]]+`)

// line is where a field stands, or, if it is not set, what it is missing in.
func line(root *yaml.Node, path string) int {
	at, found := root, 1
	if at.Kind == yaml.DocumentNode {
		at = at.Content[0]
	}
	for _, step := range segment.FindAllString(path, -1) {
		name := strings.Trim(step, "[]")
		next := -1
		switch at.Kind {
		case yaml.MappingNode:
			for i := 0; i < len(at.Content); i += 2 {
				if at.Content[i].Value == name {
					next, found = i+1, at.Content[i].Line
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(name); err == nil && i < len(at.Content) {
				next, found = i, at.Content[i].Line
			}
		}
		if next < 0 {
			return found
		}
		at = at.Content[next]
	}
	return found
}

// check fills in the defaults and lists everything that is wrong.
func (d document) check() (*Policy, field.ErrorList) {
	c := checker{}
	if d.APIVersion != APIVersion {
		c.errs = append(c.errs, field.NotSupported(field.NewPath("apiVersion"), d.APIVersion, []string{APIVersion}))
	}
	if d.Kind != Kind {
		c.errs = append(c.errs, field.NotSupported(field.NewPath("kind"), d.Kind, []string{Kind}))
	}
	at := field.NewPath("spec")
	if d.Spec.Budget.MaxNodes == nil && d.Spec.Budget.MaxPercent == nil {
		// No default: how many nodes a cluster can spare is for its owner to say.
		c.errs = append(c.errs, field.Required(at.Child("budget"), "maxNodes, maxPercent or both: how many nodes may be out of service"))
	}
	p := &Policy{
		Budget:     c.budget(at.Child("budget"), d.Spec.Budget),
		Breaker:    c.breaker(at.Child("breaker"), d.Spec.Breaker),
		Correlated: c.correlated(at.Child("correlated"), d.Spec.Correlated),
		Restart:    c.restart(at.Child("restart"), d.Spec.Restart),
		JobKinds:   c.jobKinds(at.Child("jobKinds"), d.Spec.JobKinds),
	}
	p.Output = Output(d.Spec.Output)
	p.Webhooks = c.webhooks(at.Child("webhooks"), d.Spec.Webhooks)
	common := defaults{
		observe: c.observe(at.Child("mode"), d.Spec.Mode, true),
		handOff: c.handOff(at.Child("handOff"), d.Spec.HandOff, HandOff{Annotations: KeepNode}),
	}
	for _, name := range slices.Sorted(maps.Keys(d.Spec.Rules)) {
		r, errs := d.Spec.Rules[name].check(name, at.Child("rules").Key(name), common)
		p.Rules = append(p.Rules, r)
		c.errs = append(c.errs, errs...)
	}
	slices.SortStableFunc(p.Rules, func(a, b Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	return p, c.errs
}

// defaults are what a rule does unless it says otherwise.
type defaults struct {
	observe bool
	handOff HandOff
}

func (r rule) check(name string, at *field.Path, common defaults) (Rule, field.ErrorList) {
	c := checker{}
	out := Rule{
		Name:            name,
		Condition:       corev1.NodeConditionType(r.Match.Condition),
		Status:          corev1.ConditionStatus(cmp.Or(r.Match.Status, string(corev1.ConditionTrue))),
		Repair:          c.classes(at.Child("match", "repair"), r.Match.Repair),
		Reason:          c.pattern(at.Child("match", "reason"), r.Match.Reason),
		Message:         c.pattern(at.Child("match", "message"), r.Match.Message),
		Nodes:           c.selector(at.Child("match", "nodeSelector"), r.Match.NodeSelector),
		Priority:        r.Priority,
		Observe:         c.observe(at.Child("mode"), r.Mode, common.observe),
		For:             c.duration(at.Child("for"), r.For, 0),
		ClearAfter:      c.duration(at.Child("clearAfter"), r.ClearAfter, defaultClearAfter),
		UnknownAfter:    c.unknownAfter(at.Child("unknownAfter"), r.UnknownAfter),
		AlertOnly:       r.AlertOnly,
		RestartJobs:     r.RestartJobs,
		CheckpointGrace: c.duration(at.Child("checkpointGrace"), r.CheckpointGrace, 0),
		Budget:          c.budget(at.Child("budget"), r.Budget),
		Flaps:           c.flaps(at.Child("flaps"), r.Flaps),
	}
	c.all(at, name, validation.IsDNS1123Label(name))
	if name == ByHand {
		c.invalid(at, name, "is what a person's quarantine is called")
	}
	c.all(at.Child("match", "condition"), r.Match.Condition, validation.IsQualifiedName(r.Match.Condition))
	if out.Status != corev1.ConditionTrue && out.Status != corev1.ConditionFalse {
		c.invalid(at.Child("match", "status"), r.Match.Status, "must be True or False: Unknown never acts")
	}
	ours := conditions.Ours(r.Match.Condition)
	if ours && out.Status != corev1.ConditionTrue {
		c.invalid(at.Child("match", "status"), r.Match.Status, "must be True: only then does the message of "+r.Match.Condition+" name a class")
	}
	if !ours && len(r.Match.Repair) != 1 {
		c.invalid(at.Child("match", "repair"), r.Match.Repair, "must be exactly one class: the message of a foreign condition names none")
	}
	if out.UnknownAfter == 0 {
		c.invalid(at.Child("unknownAfter"), r.UnknownAfter, "must be longer than 0s")
	}
	if r.CheckpointGrace != "" && !r.RestartJobs {
		c.errs = append(c.errs, field.Forbidden(at.Child("checkpointGrace"), "means nothing without restartJobs"))
	}
	if !r.AlertOnly {
		out.Taint = c.taint(at.Child("taint"), r.Taint, r.Match.Condition)
		out.HandOff = c.handOff(at.Child("handOff"), r.HandOff, common.handOff)
		if slices.ContainsFunc(out.HandOff.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&out.Taint) }) {
			c.invalid(at.Child("taint"), out.Taint.ToString(), "is a taint of handOff, too: key and effect identify one")
		}
		return out, c.errs
	}
	for _, acts := range []struct {
		field string
		set   bool
	}{
		{"taint", r.Taint != (taint{})}, {"handOff", r.HandOff != nil}, {"restartJobs", r.RestartJobs}, {"mode", r.Mode != ""},
		{"budget", r.Budget != (budget{})}, {"flaps", r.Flaps != (flaps{})},
	} {
		if acts.set {
			c.errs = append(c.errs, field.Forbidden(at.Child(acts.field), "means nothing with alertOnly"))
		}
	}
	return out, c.errs
}

// checker turns the text of fields into values and collects what is wrong with it.
type checker struct{ errs field.ErrorList }

func (c *checker) invalid(at *field.Path, value any, why string) {
	c.errs = append(c.errs, field.Invalid(at, value, why))
}

func (c *checker) all(at *field.Path, value any, reasons []string) {
	for _, why := range reasons {
		c.invalid(at, value, why)
	}
}

func (c *checker) duration(at *field.Path, text string, unset time.Duration) time.Duration {
	if text == "" {
		return unset
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		c.invalid(at, text, "must be a duration like 30s, 10m or 1h")
	}
	return d
}

func (c *checker) unknownAfter(at *field.Path, text string) time.Duration {
	if text == "never" {
		return Never
	}
	return c.duration(at, text, DefaultUnknownAfter)
}

func (c *checker) classes(at *field.Path, names []string) []conditions.Repair {
	if len(names) == 0 {
		c.errs = append(c.errs, field.Required(at, "the repair classes the rule is for"))
	}
	var classes []conditions.Repair
	for i, name := range names {
		class, err := conditions.ParseRepair(name)
		if err != nil {
			c.invalid(at.Index(i), name, err.Error())
		}
		classes = append(classes, class)
	}
	return classes
}

// observe tells whether a mode only watches.
func (c *checker) observe(at *field.Path, mode string, unset bool) bool {
	const observe, enforce = "observe", "enforce"
	switch mode {
	case "":
		return unset
	case observe, enforce:
	default:
		c.errs = append(c.errs, field.NotSupported(at, mode, []string{observe, enforce}))
	}
	return mode != enforce
}

// atLeast checks a number.
func (c *checker) atLeast(at *field.Path, least, value int) int {
	if value < least {
		c.invalid(at, value, fmt.Sprintf("must be at least %d", least))
	}
	return value
}

func (c *checker) percent(at *field.Path, value int) int {
	if value < 1 || value > 100 {
		c.invalid(at, value, "must be between 1 and 100")
	}
	return value
}

// longer checks a duration that must be set and not zero.
func (c *checker) longer(at *field.Path, text string) time.Duration {
	d := c.duration(at, text, 0)
	if d == 0 {
		c.errs = append(c.errs, field.Required(at, "a duration longer than 0s"))
	}
	return d
}

func (c *checker) label(at *field.Path, key string) string {
	if key != "" {
		c.all(at, key, validation.IsQualifiedName(key))
	}
	return key
}

func (c *checker) budget(at *field.Path, b budget) Budget {
	out := Unlimited
	if b.MaxNodes != nil {
		out.MaxNodes = c.atLeast(at.Child("maxNodes"), 0, *b.MaxNodes)
	}
	if b.MaxPercent != nil {
		out.MaxPercent = c.percent(at.Child("maxPercent"), *b.MaxPercent)
	}
	out.Scope = c.label(at.Child("scope"), b.Scope)
	out.Window = c.duration(at.Child("window"), b.Window, 0)
	return out
}

func (c *checker) breaker(at *field.Path, b *breaker) *Breaker {
	if b == nil {
		return nil
	}
	return &Breaker{
		MaxNodes: c.atLeast(at.Child("maxNodes"), 1, b.MaxNodes),
		Window:   c.longer(at.Child("window"), b.Window),
		CoolDown: c.longer(at.Child("coolDown"), b.CoolDown),
		Pace:     c.longer(at.Child("pace"), b.Pace),
	}
}

func (c *checker) correlated(at *field.Path, g *correlated) *Correlated {
	if g == nil {
		return nil
	}
	out := &Correlated{
		MaxPercent: c.percent(at.Child("maxPercent"), g.MaxPercent),
		// Two nodes of a rack of three are no proof of anything.
		MinNodes: c.atLeast(at.Child("minNodes"), 2, g.MinNodes),
		Window:   c.longer(at.Child("window"), g.Window),
		Scopes:   []string{""},
	}
	for i, key := range g.Scopes {
		out.Scopes = append(out.Scopes, c.label(at.Child("scopes").Index(i), key))
	}
	return out
}

func (c *checker) flaps(at *field.Path, f flaps) Flaps {
	if f == (flaps{}) {
		return Flaps{}
	}
	out := Flaps{Max: c.atLeast(at.Child("max"), 2, f.Max), Window: c.longer(at.Child("window"), f.Window)}
	if out.Max > MaxFlaps {
		c.invalid(at.Child("max"), f.Max, fmt.Sprintf("must be at most %d: a node remembers no more quarantines", MaxFlaps))
	}
	return out
}

func (c *checker) pattern(at *field.Path, text string) *regexp.Regexp {
	if text == "" {
		return nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		c.invalid(at, text, err.Error())
	}
	return re
}

func (c *checker) selector(at *field.Path, want map[string]string) labels.Selector {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		c.all(at.Key(key), key, validation.IsQualifiedName(key))
		c.all(at.Key(key), want[key], validation.IsValidLabelValue(want[key]))
	}
	return labels.SelectorFromSet(want)
}

func (c *checker) taint(at *field.Path, t taint, condition string) corev1.Taint {
	out := corev1.Taint{
		Key:    cmp.Or(t.Key, conditions.TaintUnhealthy),
		Value:  cmp.Or(t.Value, condition),
		Effect: corev1.TaintEffect(cmp.Or(t.Effect, string(corev1.TaintEffectNoSchedule))),
	}
	c.all(at.Child("key"), out.Key, validation.IsQualifiedName(out.Key))
	c.all(at.Child("value"), out.Value, validation.IsValidLabelValue(out.Value))
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	if !slices.Contains(effects, out.Effect) {
		c.errs = append(c.errs, field.NotSupported(at.Child("effect"), out.Effect, effects))
	}
	if out.Key == conditions.TaintMaintenance {
		c.invalid(at.Child("key"), out.Key, "means that somebody else owns the node")
	}
	return out
}
