package policy

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// The apiVersion and kind of a policy file.
const (
	APIVersion = conditions.Domain + "/v1alpha1"
	Kind       = "RemediationPolicy"
)

const (
	defaultClearAfter = 10 * time.Minute
	// Two heartbeats of the Node Problem Detector, which writes one every 5 minutes by default, and a bit.
	defaultUnknownAfter = 11 * time.Minute
)

// document is the file as it is written. Durations, classes and patterns are text, so that an error about one can
// name its rule, field and value; encoding/json names neither.
type document struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              spec `json:"spec"`
}

type spec struct {
	MaxNodes *int            `json:"maxNodes"`
	Rules    map[string]rule `json:"rules"`
}

type rule struct {
	Match        match  `json:"match"`
	For          string `json:"for"`
	ClearAfter   string `json:"clearAfter"`
	UnknownAfter string `json:"unknownAfter"`
	Taint        taint  `json:"taint"`
	AlertOnly    bool   `json:"alertOnly"`
	RestartJobs  bool   `json:"restartJobs"`
	Priority     int    `json:"priority"`
}

type match struct {
	Condition    string            `json:"condition"`
	Status       string            `json:"status"`
	Repair       []string          `json:"repair"`
	Message      string            `json:"message"`
	NodeSelector map[string]string `json:"nodeSelector"`
}

type taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

// Load reads and checks a policy file.
func Load(path string) (*Policy, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	p, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", path, err)
	}
	return p, nil
}

// Parse checks a policy file. An unknown field, a field that is set twice and a second YAML document are errors; an
// error names the rule, the field and the value.
func Parse(data []byte) (*Policy, error) {
	content, err := toJSON(data)
	if err != nil {
		return nil, err
	}
	// Not encoding/json: it says which field is unknown, but not where.
	var doc document
	strict, err := json.UnmarshalStrict(content, &doc)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	p, errs := doc.check()
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return p, nil
}

// toJSON converts the only document of a YAML file. The YAML library itself would ignore a second one.
func toJSON(data []byte) ([]byte, error) {
	content := []byte("{}")
	found := false
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return content, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read YAML: %w", err)
		}
		converted, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return nil, err
		}
		if string(converted) == "null" { // only comments
			continue
		}
		if found {
			return nil, errors.New("more than one YAML document")
		}
		content, found = converted, true
	}
}

// check fills in the defaults and lists everything that is wrong.
func (d document) check() (*Policy, field.ErrorList) {
	var errs field.ErrorList
	if d.APIVersion != APIVersion {
		errs = append(errs, field.NotSupported(field.NewPath("apiVersion"), d.APIVersion, []string{APIVersion}))
	}
	if d.Kind != Kind {
		errs = append(errs, field.NotSupported(field.NewPath("kind"), d.Kind, []string{Kind}))
	}
	at := field.NewPath("spec")
	p := &Policy{}
	switch {
	case d.Spec.MaxNodes == nil:
		// No default: how many nodes a cluster can spare is for its owner to say.
		errs = append(errs, field.Required(at.Child("maxNodes"), "how many nodes may be quarantined at the same time"))
	case *d.Spec.MaxNodes < 0:
		errs = append(errs, field.Invalid(at.Child("maxNodes"), *d.Spec.MaxNodes, "must not be negative"))
	default:
		p.MaxNodes = *d.Spec.MaxNodes
	}
	for _, name := range slices.Sorted(maps.Keys(d.Spec.Rules)) {
		r, ruleErrs := d.Spec.Rules[name].check(name, at.Child("rules").Key(name))
		p.Rules = append(p.Rules, r)
		errs = append(errs, ruleErrs...)
	}
	slices.SortStableFunc(p.Rules, func(a, b Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	return p, errs
}

func (r rule) check(name string, at *field.Path) (Rule, field.ErrorList) {
	c := checker{}
	out := Rule{
		Name:         name,
		Condition:    corev1.NodeConditionType(r.Match.Condition),
		Status:       corev1.ConditionStatus(cmp.Or(r.Match.Status, string(corev1.ConditionTrue))),
		Repair:       c.classes(at.Child("match", "repair"), r.Match.Repair),
		Message:      c.pattern(at.Child("match", "message"), r.Match.Message),
		Nodes:        c.selector(at.Child("match", "nodeSelector"), r.Match.NodeSelector),
		Priority:     r.Priority,
		For:          c.duration(at.Child("for"), r.For, 0),
		ClearAfter:   c.duration(at.Child("clearAfter"), r.ClearAfter, defaultClearAfter),
		UnknownAfter: c.duration(at.Child("unknownAfter"), r.UnknownAfter, defaultUnknownAfter),
		AlertOnly:    r.AlertOnly,
		RestartJobs:  r.RestartJobs,
	}
	c.all(at, name, validation.IsDNS1123Label(name))
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
	if !r.AlertOnly {
		out.Taint = c.taint(at.Child("taint"), r.Taint, r.Match.Condition)
		return out, c.errs
	}
	if r.Taint != (taint{}) {
		c.invalid(at.Child("taint"), r.Taint.Key, "must not be set with alertOnly")
	}
	if r.RestartJobs {
		c.invalid(at.Child("restartJobs"), r.RestartJobs, "must not be set with alertOnly")
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
