package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// degraded returns what a GPU's fabric health mask says, a field of a few bits for each question. NVML answers each with 1 for true and 2
// for false, so that 0xaa is a healthy fabric; 0 is a question that it does not answer. Of the configuration all from 2 on is a fault.
func degraded(mask uint32) (words []string) {
	for _, question := range []struct {
		shift uint32
		words string
	}{
		{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, "less bandwidth"},
		{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, "routes that recover"},
		{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, "unhealthy routes"},
		{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, "access timeouts"},
	} {
		// All four have the same width and the same answers.
		answer := mask >> question.shift & nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW
		if answer == nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE {
			words = append(words, question.words)
		}
	}
	configuration := mask >> nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
	if configuration&nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION > nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE {
		words = append(words, "a wrong configuration")
	}
	return words
}
