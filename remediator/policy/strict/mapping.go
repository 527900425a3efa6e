package strict

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type pair struct {
	key   string
	line  int
	value *yaml.Node
}

// pairs are the fields of a mapping. Keys of its own come before those that it merges (`<<`), as in yaml.v3.
func (d *Decoder) pairs(n *yaml.Node, at *field.Path) (all []pair) {
	lines := map[string]int{}
	const active, done = 1, 2
	merged := map[*yaml.Node]int{}
	var add func(n *yaml.Node)
	add = func(n *yaml.Node) {
		n = resolve(n)
		if merged[n] == active {
			d.fail(n.Line, fmt.Errorf("anchor %q contains itself (%s)", n.Anchor, describe(at)))
		}
		if merged[n] != 0 {
			return // a second time adds nothing
		}
		merged[n] = active
		defer func() { merged[n] = done }()
		if n.Kind != yaml.MappingNode {
			d.wrong(n, at, "a mapping")
			return
		}
		own := map[string]int{}
		var merges []*yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if d.count(n.Content[i]); d.isFull() {
				return
			}
			key, value := resolve(n.Content[i]), n.Content[i+1]
			if key.Kind != yaml.ScalarNode {
				d.wrong(key, at, "a name")
				continue
			}
			if key.ShortTag() == "!!merge" {
				merges = append(merges, value)
				continue
			}
			if line, twice := own[key.Value]; twice {
				d.failed[at.String()] = true
				d.fail(key.Line, fmt.Errorf("mapping key %q already defined at line %d", key.Value, line))
				continue
			}
			own[key.Value] = key.Line
			if _, overridden := lines[key.Value]; !overridden {
				lines[key.Value] = key.Line
				all = append(all, pair{key.Value, key.Line, value})
			}
		}
		for _, m := range merges {
			if m = resolve(m); m.Kind == yaml.SequenceNode {
				for _, each := range m.Content {
					add(each)
				}
			} else {
				add(m)
			}
		}
	}
	add(n)
	return all
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func isFalse(n *yaml.Node) bool {
	return n.ShortTag() == "!!bool" && strings.EqualFold(n.Value, "false")
}

// orEmpty is a mapping without keys in place of null: a part that must be checked although nothing is in it.
func orEmpty(n *yaml.Node) *yaml.Node {
	if n = resolve(n); isNull(n) {
		return &yaml.Node{Kind: yaml.MappingNode, Line: n.Line}
	}
	return n
}
