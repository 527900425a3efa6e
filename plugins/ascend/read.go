package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/daily"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/podresources"
	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
	"github.com/pitcrew-dev/pitcrew/internal/tool"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot boot.Boot `json:"boot"`
	// Only are the subjects that are checked.
	Only []string `json:"only"`
	// PCI are the addresses of Ascend chips on the bus.
	PCI    []string `json:"pci"`
	PCIErr string   `json:"pciErr,omitempty"`
	// Tools is the output of the tools; they are not run where there is no NPU.
	Tools tools `json:"tools"`
	// Offered is how many the kubelet offers to pods, nil if it is not asked; OfferedErr says why that is not known.
	Offered    *int   `json:"offered,omitempty"`
	OfferedErr string `json:"offeredErr,omitempty"`
	// Most is the largest number of NPUs in this boot.
	Most int `json:"most"`
	// Unshared is why the state could not be kept.
	Unshared string `json:"unshared,omitempty"`
}

// tools is one run of the tools.
type tools struct {
	At time.Time `json:"at"`
	// Listed: the list of NPUs was understood.
	Listed bool `json:"listed"`
	// Chips is how many the cards of the list have; 0 if not known.
	Chips int      `json:"chips,omitempty"`
	NPUs  []npu    `json:"npus"`
	Errs  []string `json:"errs"`
}

// npu is one NPU, a card with one or more chips. What was not asked or not answered is empty.
type npu struct {
	ID int `json:"id"`
	// Chips are the healths: OK, Warning, Alarm, Critical or UNKNOWN.
	Chips []chip `json:"chips,omitempty"`
	// Pages are the isolated pages of the worst chip.
	Pages *uint64 `json:"pages,omitempty"`
	// Links are UP or DOWN by the chips' logic ids.
	Links map[int]string `json:"links,omitempty"`
	Errs  []string       `json:"errs,omitempty"`
}

// all are the subjects that can be checked.
var all = []string{"card", "health", "ecc", "net", "mcu"}

func checkSubject(name string) error {
	if !slices.Contains(all, name) {
		return fmt.Errorf("%q is none of %s", name, strings.Join(all, ","))
	}
	return nil
}

// PCI ids of Huawei's NPUs: accelerators; 310 and 310P have no network of their own.
const (
	huawei      = 0x19e5
	accelerator = 0x1200
	device310   = 0xd100
	device310P  = 0xd500
)

type reader struct {
	plugin                    *npd.Plugin
	tool, hccn, sysfs, procfs string
	podResources              string
	only                      []string
	at                        daily.Schedule
	spread                    time.Duration

	store npd.Store[state]
}

// state is kept from run to run.
type state struct {
	Most int `json:"most"`
	// Tools is the last run, by what was asked.
	Tools map[string]tools `json:"tools"`
}

func (r *reader) driver() string { return npd.Module(r.sysfs, "drv_davinci_intf_host") }

func (r *reader) read(ctx context.Context) (snapshot, error) {
	b, err := r.open()
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Boot: b, Only: r.only, PCI: []string{}, Tools: tools{NPUs: []npu{}, Errs: []string{}}}
	functions, err := sysfs.PCI(r.sysfs, huawei)
	if err != nil {
		s.PCIErr = err.Error()
	}
	network := false
	for _, f := range functions {
		// npu-smi does not list what is for a virtual machine.
		if f.Class>>8 == accelerator && !f.Virtual && !f.PassedOn() {
			s.PCI = append(s.PCI, f.Address)
			network = network || f.Device != device310 && f.Device != device310P
		}
	}
	asked := strings.Join(r.only, ",")
	before, _ := r.store.Update(func(*state) bool { return false })
	if len(s.PCI) > 0 {
		s.Tools = r.askTools(ctx, before.Tools[asked], network)
	}
	if r.podResources != "" && len(s.PCI) > 0 && slices.Contains(r.only, "card") {
		if offered, err := podresources.Offered(ctx, r.podResources, isNPU); err != nil {
			s.OfferedErr = err.Error()
		} else {
			s.Offered = &offered
		}
	}
	after, err := r.store.Update(func(st *state) bool {
		if st.Tools == nil {
			st.Tools = map[string]tools{}
		}
		st.Tools[asked] = s.Tools
		st.Most = max(st.Most, len(s.Tools.NPUs))
		return true
	})
	if err != nil {
		s.Unshared = err.Error()
	}
	s.Most = after.Most
	return s, nil
}

// isNPU reports whether an extended resource is one of whole chips: huawei.com/Ascend910, and huawei.com/ascend-1980 of ModelArts, whose
// huawei.com/ascend-1980-memory has slices of their memory.
func isNPU(resource string) bool {
	return strings.HasPrefix(resource, "huawei.com/") && !strings.HasSuffix(resource, "-memory")
}

// clear forgets how many NPUs there were, for a node from which some were taken on purpose.
func (r *reader) clear(_ context.Context, _ string) (cleared []string, err error) {
	if _, err := r.open(); err != nil {
		return nil, err
	}
	_, err = r.store.Update(func(st *state) bool {
		if st.Most > 0 {
			cleared = []string{"number of NPUs"}
		}
		*st = state{}
		return true
	})
	return cleared, err
}

// open binds the state to this boot.
func (r *reader) open() (boot.Boot, error) {
	return r.store.Open(r.procfs, r.plugin.StateDir, "ascend")
}

// askTools runs the tools, or repeats their last output if they are not due.
func (r *reader) askTools(ctx context.Context, last tools, network bool) tools {
	now := time.Now()
	// The node's name spreads the nodes; without one they run together.
	node, _ := os.Hostname()
	if !last.At.IsZero() && !r.at.Due(last.At, now, node, r.spread) {
		return last
	}
	// Less than the worker has, so that a tool that hangs but can be killed hides nothing else.
	ctx, cancel := context.WithTimeout(ctx, r.plugin.Timeout/2)
	defer cancel()
	t := tools{At: now, NPUs: []npu{}, Errs: []string{}}
	cards, err := said(parseList, noCard)(tool.Run(ctx, r.tool, "info", "-l"))
	if err != nil {
		t.Errs = append(t.Errs, err.Error())
		return t
	}
	t.Listed = true
	var chips map[int][]int
	if network && len(cards) > 0 && slices.Contains(r.only, "net") {
		if chips, err = parsed(parseChips)(tool.Run(ctx, r.tool, "info", "-m")); err != nil {
			t.Errs = append(t.Errs, err.Error())
		}
	}
	for _, c := range cards {
		t.Chips += c.Chips
		n := npu{ID: c.ID, Links: map[int]string{}}
		if err := r.ask(ctx, &n, chips[c.ID]); err != nil {
			n.Errs = strings.Split(err.Error(), "\n")
		}
		t.NPUs = append(t.NPUs, n)
	}
	return t
}

// ask asks for everything about one NPU; what fails does not keep it from the rest. One that does not answer is not asked on: the time is
// for the others.
func (r *reader) ask(ctx context.Context, n *npu, chips []int) error {
	var errs []error
	id := strconv.Itoa(n.ID)
	if slices.Contains(r.only, "health") || slices.Contains(r.only, "mcu") {
		chips, err := parsed(parseHealth)(tool.Run(ctx, r.tool, "info", "-t", "health", "-i", id))
		n.Chips = chips
		errs = append(errs, err)
	}
	if slices.Contains(r.only, "ecc") && !hangs(errs) {
		pages, err := said(parsePages, noECC)(tool.Run(ctx, r.tool, "info", "-t", "ecc", "-i", id))
		if err == nil {
			n.Pages = &pages
		}
		errs = append(errs, err)
	}
	for _, chip := range chips {
		if hangs(errs) {
			break
		}
		link, err := parsed(parseLink)(tool.Run(ctx, r.hccn, "-i", strconv.Itoa(chip), "-link", "-g"))
		if err == nil {
			n.Links[chip] = link
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// hangs reports whether the last call did not answer.
func hangs(errs []error) bool {
	return len(errs) > 0 && errors.Is(errs[len(errs)-1], tool.ErrNoAnswer)
}

// said is [parsed] for a tool that fails with words that are an answer.
func said[T any](parse func(string) (T, error), words string) func(string, error) (T, error) {
	return func(out string, err error) (T, error) {
		if strings.Contains(out, words) {
			err = nil
		}
		return parsed(parse)(out, err)
	}
}

// parsed passes a tool's output to its parser unless the tool failed.
func parsed[T any](parse func(string) (T, error)) func(string, error) (T, error) {
	return func(out string, err error) (value T, _ error) {
		if err != nil {
			return value, err
		}
		return parse(out)
	}
}
