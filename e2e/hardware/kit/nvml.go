package main

import (
	"context"
	"debug/elf"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
)

// questions has the values that the plugins dump of each GPU of the stand-in, a plugin and the path of a value in a line. The test of
// e2e/hardware writes it.
//
//go:embed questions.txt
var questions string

// nvmlCommand is a plugin that asks NVML.
func (k *kit) nvmlCommand(name, output string, args ...string) program {
	p := k.command(name, output, "-sysfs", k.sysfs, "-grace", "0s")
	if k.machine.DriverRoot != "" {
		p.argv = append(p.argv, "-driver-root", k.machine.DriverRoot)
	}
	p.argv = append(p.argv, args...)
	return p
}

// environment has the loader find the driver's library where the kit has found it: nvidia-smi and the CUDA load have no flag for that.
func (k *kit) environment() []string {
	if k.machine.DriverRoot == "" || k.machine.Library == "" {
		return nil
	}
	return []string{"LD_LIBRARY_PATH=" + filepath.Dir(k.machine.Library) + ":" + os.Getenv("LD_LIBRARY_PATH")}
}

// nvml runs a check that asks NVML: what it reads, its answer, and its answer to what it has read.
func (k *kit) nvml(ctx context.Context, o *outcome, name string) {
	dump := o.file(k.try(ctx, k.nvmlCommand(name, name+".json", "-dump")))
	if isSilent(dump) {
		o.differs("%s", dump.Says)
		if k.silent++; k.silent > 1 {
			return
		}
		// Does it hang, or is it slow?
		k.limit *= 3
		if dump = o.file(k.try(ctx, k.nvmlCommand(name, name+".json", "-dump"))); isSilent(dump) {
			k.limit /= 3
			return
		}
		k.silent = 0
		o.differs("it takes %.1f s", dump.Seconds)
	}
	if dump.Failed != "" {
		return
	}
	r := o.answered(k.try(ctx, k.nvmlCommand(name, name+".txt")))
	if len(k.machine.GPUs) > 0 && r.Failed == "" && r.Exit != 0 {
		o.differs("a healthy GPU must be healthy, and exit %d says %s", r.Exit, r.Says)
	}
	if dump.Exit != 0 {
		if r.Exit == 0 {
			o.differs("-dump exits %d: %s", dump.Exit, dump.Says)
		}
		return
	}
	path := filepath.Join(k.work, name+".json")
	if err := os.WriteFile(path, []byte(dump.stdout), 0o600); err != nil {
		o.differs("%v", err)
		return
	}
	if again := o.answered(k.try(ctx, k.command(name, "", "-snapshot", path))); again.Failed == "" && again.Exit != r.Exit {
		o.differs("exit %d, and exit %d for its dump: %s", r.Exit, again.Exit, again.Says)
	}
	k.answers(o, name, dump.stdout)
}

// isSilent reports whether a look at the driver had no answer in time.
func isSilent(r ran) bool {
	hangs := func(text string) bool { return strings.HasPrefix(r.Says, text) }
	return r.Hung || r.Exit == 2 && slices.ContainsFunc([]string{"unknown: no answer within ", "unknown: driver: an earlier call "}, hangs)
}

// answers names the questions that the driver has not answered, and those that failed.
func (k *kit) answers(o *outcome, name, dump string) {
	var s struct {
		GPUs []map[string]any
	}
	if err := json.Unmarshal([]byte(dump), &s); err != nil {
		o.differs("-dump: %v", err)
		return
	}
	asked := questionsOf(name)
	if len(s.GPUs) == 0 && len(k.machine.GPUs) > 0 && len(asked) > 0 {
		o.differs("no GPU has answered")
		return
	}
	missing, answered := map[string]int{}, map[string]bool{}
	for _, g := range s.GPUs {
		if unread, ok := g["unread"]; ok {
			o.differs("gpu %v: %v", g["address"], unread)
		}
		has := map[string]bool{}
		leaves(g, "", has)
		maps.Copy(answered, has)
		for _, question := range asked {
			if !has[question] {
				missing[question]++
			}
		}
	}
	o.Answered = slices.Sorted(maps.Keys(answered))
	for _, question := range slices.Sorted(maps.Keys(missing)) {
		of := ""
		if n := missing[question]; n < len(s.GPUs) {
			of = fmt.Sprintf(" (%d of %d GPUs)", n, len(s.GPUs))
		}
		o.Unsupported = append(o.Unsupported, question+of)
	}
}

// questionsOf returns the values that a plugin dumps of a GPU of the stand-in.
func questionsOf(name string) (paths []string) {
	for line := range strings.Lines(questions) {
		if plugin, path, _ := strings.Cut(strings.TrimSpace(line), " "); plugin == name {
			paths = append(paths, path)
		}
	}
	return paths
}

// leaves files the paths of the values in a JSON document, such as nvlink.links[].active.
func leaves(v any, path string, to map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			leaves(value, strings.TrimPrefix(path+"."+name, "."), to)
		}
	case []any:
		for _, value := range v {
			leaves(value, path+"[]", to)
		}
	default:
		to[path] = true
	}
}

// function is a function that the stand-in defines.
var function = regexp.MustCompile(`(?m)^(?:nvmlReturn_t|const char \*) ?(nvml\w+)\(`)

// symbols names the functions of the stand-in that the machine's library does not have.
func (k *kit) symbols(_ context.Context, o *outcome) {
	if k.machine.Library == "" {
		o.note("no %s was found: give -driver-root", libraryName)
		return
	}
	source := text(filepath.Join(k.home, "fixtures", "libnvidia-ml.c"))
	library, err := elf.Open(k.machine.Library)
	if err != nil {
		o.differs("%v", err)
		return
	}
	defer func() { _ = library.Close() }()
	symbols, err := library.DynamicSymbols()
	if err != nil {
		o.differs("%s: %v", k.machine.Library, err)
		return
	}
	defined := map[string]bool{}
	for _, s := range symbols {
		defined[s.Name] = s.Section != elf.SHN_UNDEF
	}
	o.compared = true
	wanted := function.FindAllStringSubmatch(source, -1)
	for _, m := range wanted {
		if !defined[m[1]] {
			o.Unsupported = append(o.Unsupported, m[1])
		}
	}
	o.note("%s has %d of the %d functions of the stand-in", filepath.Base(k.machine.Library), len(wanted)-len(o.Unsupported), len(wanted))
}

// onBus matches the name of a device on the PCI bus.
var onBus = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// bus compares the GPUs on the PCI bus, those that the kernel driver has, and those that NVML has.
func (k *kit) bus(_ context.Context, o *outcome) {
	var s struct {
		GPUs []gpu.GPU
	}
	dump := k.kept.get("gpucount.json")
	if err := json.Unmarshal([]byte(dump), &s); err != nil {
		o.note("gpucount has read nothing")
		return
	}
	var known, bound []string
	for _, g := range s.GPUs {
		if !g.NotInNVML {
			known = append(known, g.Address)
		}
	}
	devices, err := os.ReadDir(filepath.Join(k.sysfs, "bus/pci/drivers/nvidia"))
	if err != nil {
		o.note("%v", err)
	}
	for _, d := range devices {
		if onBus.MatchString(d.Name()) {
			bound = append(bound, gpu.Address(d.Name()))
		}
	}
	files, _ := filepath.Glob(k.devices + "[0-9]*")
	o.note("%d GPUs on the PCI bus, %d with the kernel driver, %d in NVML, %d device files",
		len(k.machine.GPUs), len(bound), len(known), len(files))
	o.compared = len(k.machine.GPUs) > 0
	for _, list := range [][]string{known, bound, k.machine.GPUs} {
		slices.Sort(list)
	}
	if !slices.Equal(known, bound) || !slices.Equal(bound, k.machine.GPUs) {
		o.differs("on the PCI bus %q, with the kernel driver %q, in NVML %q", k.machine.GPUs, bound, known)
	}
}
