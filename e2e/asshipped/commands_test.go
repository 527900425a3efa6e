package asshipped_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// commands: those of the pages on the loop, about a node that needs a replacement.
func commands(t *testing.T, c *cluster.Cluster) {
	m := newMachine(&site{T: t, Cluster: c}, "commands", nil)
	m.report(conditions.DCGMDiagFailed, corev1.ConditionTrue, "Replace gpu 0000:1b:00: memory test failed")
	m.beating("the node is quarantined", func() error {
		if n := m.site.node(m.node); n.Labels[conditions.LabelStatus] != conditions.StatusQuarantined {
			return fmt.Errorf("labels %v", n.Labels)
		}
		return nil
	})
	value := func(string) {} // it is a value of the installation, or a name in a sentence
	// says runs a command, with more arguments, and wants a text in its output, also of one that fails.
	says := func(more, want string) func(string) {
		return func(line string) {
			m.beat()
			line = strings.ReplaceAll(line, "NODE", m.node) + more
			if out, err := shell(t, c, line); !strings.Contains(out, want) {
				t.Errorf("%s: %v\n%s\nwant %q", line, err, out, want)
			}
		}
	}
	repair := says("", "a cause is of class Replace")
	doctor := says("", "  repairs  ") // it names the nodes of other tests, which report less
	describe := says("", "DCGMDiagFailed")
	approve := func(line string) {
		says(" --yes", m.node)(line)
		m.says("not repaired: a cause is of class Replace", nil)
	}
	release := says(" --dry-run", m.node)
	follow(t, c.Root, "repair-steps.md",
		step{"kubectl pitcrew repair NODE", repair}, step{"kubectl pitcrew repair NODE --approve", approve}, step{"kubectl pitcrew reset", value},
		step{"kubectl pitcrew doctor", doctor})
	follow(t, c.Root, "sweeps.md",
		step{"kubectl pitcrew describe NODE", describe},
		step{"policy:\n  sweeps", value}, step{"kubectl pitcrew status -o wide", says("", "CHECKED")},
		step{"kubectl pitcrew check NODE", says(" --yes", "is quarantined")},
		step{"kubectl pitcrew release NODE", release}, step{"kubectl pitcrew release NODE --without-validation", release},
		step{"registerWithTaints", value}, step{"policy:\n  firstCheck", value}, step{"kubectl pitcrew status", says("", m.node)})
	follow(t, c.Root, "templates.md",
		step{"kubectl get podtemplates -n pitcrew-repair -o yaml", says("", "name: burn-in")},
		step{"repair:\n  enabled: true\n  templates", value}, step{"kubectl pitcrew doctor", doctor})
	follow(t, c.Root, "repair.md",
		step{"kubectl pitcrew repair NODE", repair}, step{"kubectl pitcrew repair NODE --approve", approve},
		step{"repair: {enabled: true}", value}, step{"kubectl pitcrew doctor", doctor},
		step{"kubectl pitcrew status", says("", m.node)}, step{"kubectl pitcrew describe NODE", describe},
		step{"kubectl pitcrew repair NODE", repair},
		step{"kubectl pitcrew repair", value}, step{"kubectl pitcrew check", value}, step{"kubectl pitcrew release", value},
		step{"kubectl pitcrew repair NODE --stop", says(" --yes", m.node)}, step{"kubectl cordon NODE", says("", "cordoned")},
		step{"kubectl pitcrew pause", func(line string) {
			says(" --yes", "")(line)
			says(" --yes", "")("kubectl pitcrew resume")
		}},
		step{"kubectl pitcrew repair NODE --approve", says(" --yes", m.node)}, step{"kubectl pitcrew release NODE", release})
}

// asked returns what a command of kubectl pitcrew answers, whatever its exit code.
func (m *machine) asked(args ...string) string {
	m.Helper()
	args = append([]string{"--kubeconfig", m.Kubeconfig, "--namespace", namespace}, args...)
	out, _ := exec.CommandContext(m.T.Context(), filepath.Join(m.Root, "bin", "kubectl-pitcrew"), args...).CombinedOutput() // doctor exits 2
	return string(out)
}

// says waits until an Event on the node, and each of the commands, contain a text.
func (m *machine) says(event string, commands map[string]string) {
	m.Helper()
	m.beating("Event "+event, func() error {
		var events eventsv1.EventList
		if err := m.Client.List(m.T.Context(), &events, client.InNamespace("default")); err != nil {
			return err
		}
		var notes []string
		for _, e := range events.Items {
			if e.Regarding.Name == m.node {
				if strings.Contains(e.Note, event) {
					return nil
				}
				notes = append(notes, e.Note)
			}
		}
		return fmt.Errorf("its Events say %q", notes)
	})
	for command, want := range commands {
		m.beating(command, func() error {
			if out := m.asked(strings.Fields(strings.ReplaceAll(command, "NODE", m.node))...); !strings.Contains(out, want) {
				return fmt.Errorf("it does not say %q:\n%s", want, out)
			}
			return nil
		})
	}
}
